//! What is installed beside the command: manual pages, and units of systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Finished, Running, Store};

const BINARY: &str = env!("CARGO_BIN_EXE_latchwork");

/// Runs a program of the system to its end.
fn output(store: &Store, program: &str, words: &[&str]) -> Finished {
    let mut command = Command::new(program);
    command.args(words);
    Running::start(store.at_this_store(command)).finish()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    files.sort();
    files
}

/// As `man` shows them, with all warnings of groff on.
#[test]
fn groff_reads_the_manual_page_of_every_verb() {
    let store = Store::new();
    let folder = store.file("man1");
    assert_eq!(store.output(&["man", "--dir", folder.to_str().unwrap()]).code(), 0);
    let shown = |page: &Path| {
        let words = ["-man", "-ww", "-Tascii", "-P-cbou", page.to_str().unwrap()];
        let shown = output(&store, "groff", &words);
        assert_eq!((shown.code(), &*shown.stderr), (0, ""), "{}", page.display());
        shown.stdout
    };
    let pages = files(&folder);
    let help = store.output(&["--help"]).stdout;
    let verbs =
        help.split("Commands:\n").nth(1).unwrap().lines().take_while(|line| !line.is_empty());
    let verbs: Vec<_> = verbs.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(verbs.contains(&"run") && verbs.contains(&"man"), "{verbs:?}");
    for verb in verbs.into_iter().filter(|verb| *verb != "help") {
        let page = folder.join(format!("latchwork-{verb}.1"));
        assert!(pages.contains(&page), "{verb}");
        let text = shown(&page);
        assert!(text.contains("SYNOPSIS") && text.contains("OPTIONS"), "{verb}: {text}");
    }
    let main = store.file("latchwork.1");
    fs::write(&main, store.output(&["man"]).stdout).unwrap();
    assert!(shown(&main).contains("latchwork-run(1)"));
    // As `git help VERB`; a verb is no directory to write into.
    let run = store.file("run.1");
    fs::write(&run, store.output(&["man", "run"]).stdout).unwrap();
    // By the name of the page, too.
    let named = store.output(&["man", "latchwork-run"]);
    assert_eq!((named.code(), named.stdout), (0, fs::read_to_string(&run).unwrap()));
    assert_eq!(shown(&run), shown(&folder.join("latchwork-run.1")));
    let synopsis = shown(&run).split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["[--permits TAKE/OF]", "[--wait TIME]", "[GLOBAL OPTIONS] NAME... [-- COMMAND...]"]
    {
        assert!(synopsis.contains(part), "{synopsis}");
    }
    assert_eq!(shown(&main), shown(&folder.join("latchwork.1")));
}

/// With an instance, and this command in place of an installed one.
#[test]
fn systemd_accepts_the_units() {
    let store = Store::new();
    let units = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");
    let folder = store.file("units");
    fs::create_dir(&folder).unwrap();
    for unit in files(Path::new(units)) {
        let text = fs::read_to_string(&unit).unwrap().replace("/usr/local/bin/latchwork", BINARY);
        let name = unit.file_name().unwrap().to_str().unwrap().replace('@', "@x");
        fs::write(folder.join(name), text).unwrap();
    }
    let units = files(&folder);
    assert_eq!(units.len(), 5, "{units:?}");
    let verify = |unit: &Path| {
        let words = ["verify", "--man=no", "--recursive-errors=no", unit.to_str().unwrap()];
        output(&store, "systemd-analyze", &words)
    };
    for unit in &units {
        let done = verify(unit);
        assert_eq!((done.code(), &*done.stderr), (0, ""), "{}", unit.display());
    }
    let wrong = folder.join("wrong@x.service");
    let text = fs::read_to_string(folder.join("latchwork@x.service")).unwrap();
    fs::write(&wrong, text.replace("KillMode=mixed", "KillMode=mxed")).unwrap();
    assert!(verify(&wrong).stderr.contains("mxed"), "a mistake is noticed");
}

/// The words of a list of an image's recipe, such as `ENTRYPOINT ["latchwork"]`.
fn words(recipe: &str, instruction: &str) -> Vec<String> {
    let line = recipe.lines().find_map(|line| line.strip_prefix(instruction)).unwrap();
    serde_json::from_str(line.trim()).unwrap()
}

/// Without an image: the folder, the user, the start and the health check of the recipe, outside of a container.
#[test]
fn the_steps_of_the_containerfile_work_outside() {
    use std::os::unix::fs::PermissionsExt as _;
    let (store, user) = (Store::new(), "65534");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/Containerfile.serve");
    let recipe = fs::read_to_string(path).unwrap().replace("\\\n", "");
    assert!(recipe.contains(&format!("\nUSER {user}:{user}\n")), "{recipe}");
    let root = store.file("root");
    fs::create_dir(&root).unwrap();
    for folder in [root.parent().unwrap(), &root] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let inside = |text: &str| text.replace("/run/latchwork", &format!("{}/run", root.display()));
    // The step that makes the folder, which is the one after the packages.
    let make = recipe.lines().find_map(|line| line.split_once("&& install ")).unwrap().1;
    let made = output(&store, "sh", &["-c", &inside(&format!("install {make}"))]);
    assert_eq!(made.code(), 0, "{made:?}");
    assert_eq!(fs::metadata(root.join("run")).unwrap().permissions().mode() & 0o777, 0o700);
    let program = root.join("latchwork");
    fs::copy(BINARY, &program).unwrap();
    let locks = root.join("locks");
    let made = output(&store, "install", &["-d", "-o", user, locks.to_str().unwrap()]);
    assert_eq!(made.code(), 0);
    let as_user = |line: &[String]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups", "--"]).args(line);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        let mut command = store.at_this_store(command);
        command.env("LATCHWORK_STORE", format!("file://{}", locks.display()));
        command
    };
    let mut start = words(&recipe, "ENTRYPOINT ");
    assert_eq!(start, ["latchwork"]);
    start[0] = program.display().to_string();
    start.extend(words(&recipe, "CMD ").iter().map(|word| inside(word)));
    let check = recipe.lines().find_map(|line| line.split_once(" CMD curl ")).unwrap().1;
    let check = ["sh".to_owned(), "-c".to_owned(), inside(&format!("curl {check}"))];
    let is_healthy = || Running::start(as_user(&check)).finish().code() == 0;
    assert!(!is_healthy(), "healthy before it runs");
    let service = Running::start(as_user(&start));
    service.stderr.until("ready");
    assert!(is_healthy());
    // A container is stopped by SIGTERM.
    service.signal(rustix::process::Signal::TERM);
    assert_eq!(service.finish().code(), 0);
    assert!(!is_healthy(), "healthy after its end");
}
