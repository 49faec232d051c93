//! The name of this process for people.

/// Returns the number of this process for people: `pid 812`.
///
/// In a container the number counts in its own PID namespace alone. There it is `pid 7 in PID namespace 4026532301`;
/// `lsns --type pid` on the machine shows the namespaces with their processes.
pub fn this_process() -> String {
    shown(std::process::id(), namespace().as_deref())
}

/// The first PID namespace of every Linux, in which a machine starts (`PROC_PID_INIT_INO`).
const FIRST: &str = "4026531836";

fn shown(pid: u32, namespace: Option<&str>) -> String {
    match namespace {
        Some(number) if number != FIRST => format!("pid {pid} in PID namespace {number}"),
        _ => format!("pid {pid}"),
    }
}

/// The number of the PID namespace that this process is in, where the system says it.
fn namespace() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let number = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
    Some(number.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_of_another_namespace_says_so() {
        assert_eq!(shown(812, Some(FIRST)), "pid 812");
        assert_eq!(shown(812, None), "pid 812");
        assert_eq!(shown(7, Some("4026532301")), "pid 7 in PID namespace 4026532301");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_namespace_of_this_process_is_a_number() {
        let number = namespace().expect("/proc is mounted");
        assert!(number.parse::<u64>().is_ok(), "{number}");
    }
}
