//! The words that `ps` shows of a process, in place of those of the one that it was forked from.

use std::ffi::CStr;
use std::fs;

use super::stat::StatLine;

/// Shows `words` instead of the arguments of this process, or as much of them as these were long.
///
/// Call it in a forked process only, which reads no arguments any more. Without a `/proc` to ask where
/// they lie, they stay.
#[expect(unsafe_code, reason = "nothing safe changes what the kernel shows")]
pub(crate) fn set(words: &CStr) {
    let Ok(stat) = fs::read_to_string("/proc/self/stat") else { return };
    let Some((start, length)) = arguments(&stat) else { return };
    let words = words.to_bytes_with_nul();
    let shown = words.len().min(length);
    // SAFETY: the kernel put the arguments there when it executed this program, on the stack of the first
    // thread, below all frames; nobody in this process reads or writes them any more. The last byte stays
    // zero, or the kernel would go on into the environment.
    unsafe {
        let arguments = std::ptr::with_exposed_provenance_mut::<u8>(start);
        arguments.write_bytes(0, length);
        arguments.copy_from_nonoverlapping(words.as_ptr(), shown.min(length - 1));
    }
}

/// Where the arguments lie and how long they are, by a line of `/proc/PID/stat`.
pub(crate) fn arguments(stat: &str) -> Option<(usize, usize)> {
    let stat = StatLine::of(stat)?;
    let (start, end): (usize, usize) = (stat.number(48)?, stat.number(49)?);
    // Zeros where the kernel does not tell.
    let length = end.checked_sub(start).filter(|&length| start > 0 && length > 0)?;
    Some((start, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_found_where_they_lie() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let (_, length) = arguments(&stat).unwrap();
        assert_eq!(length, fs::read("/proc/self/cmdline").unwrap().len());
        assert_eq!(arguments("7 (a) b) S 1 2"), None);
    }
}
