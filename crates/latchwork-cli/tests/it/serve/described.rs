//! The description of the API, and schemathesis, which makes requests of it that nobody thought of.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use super::Service;
use super::client::Address;

/// The version that is installed for the test, from PyPI.
const SCHEMATHESIS: &str = "schemathesis==4.32.5";

/// The program, installed into `target` at its first use.
fn schemathesis() -> std::path::PathBuf {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let venv = target.join("schemathesis");
    // One process installs it, and the others wait.
    let turn = File::create(target.join("schemathesis.lock")).unwrap();
    turn.lock().unwrap();
    let program = venv.join("bin/schemathesis");
    let installed = venv.join(SCHEMATHESIS);
    if !installed.exists() {
        let made = Command::new("/usr/bin/python3").args(["-m", "venv"]).arg(&venv).status();
        assert!(made.unwrap().success(), "python3-venv is missing: cargo xtask setup");
        let mut pip = Command::new(venv.join("bin/pip"));
        assert!(pip.args(["install", "--quiet", SCHEMATHESIS]).status().unwrap().success());
        fs::write(&installed, "").unwrap();
    }
    program
}

#[test]
fn the_command_prints_the_description_of_the_service() {
    let service = Service::start(&[]);
    let served = service.ask("GET /openapi.json", "").json();
    let printed = service.store.output(&["serve", "--print-openapi"]);
    let printed: serde_json::Value = serde_json::from_str(&printed.stdout).unwrap();
    assert_eq!(served, printed);
    let paths = served["paths"].as_object().unwrap();
    for path in ["/v1/locks/{name}", "/v1/holds/{hold}/renew", "/v1/events", "/readyz"] {
        assert!(paths.contains_key(path), "{path}: {:?}", paths.keys());
    }
}

/// No answer is a 5xx, and each has the form that the description says. More by hand: docs/serve.md.
#[test]
fn no_request_that_schemathesis_makes_breaks_the_service() {
    let program = schemathesis();
    let dir = tempfile::tempdir().unwrap();
    let service = Service::start(&[]);
    let Address::Tcp(port) = service.address else { unreachable!() };
    // Beside those that it expects, 410: a hold of a short ttl may end before it is used.
    let expected = "negative_data_rejection.expected-statuses = \
                    [400, 401, 403, 404, 405, 406, 409, 410, 415, 422, 428, 429]";
    fs::write(dir.path().join("schemathesis.toml"), format!("[checks]\n{expected}\n")).unwrap();
    let mut command = Command::new(program);
    command.current_dir(dir.path()).args([
        "run",
        &format!("http://127.0.0.1:{port}/openapi.json"),
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,\
         response_schema_conformance,negative_data_rejection,unsupported_method",
        "--phases",
        "coverage,fuzzing",
        "--max-examples",
        "8",
        // Streams have no end.
        "--exclude-path-regex",
        "events",
        "--request-timeout",
        "20",
        "--no-color",
    ]);
    // It takes about half a minute.
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(service.ask("GET /readyz", "").status, 200);
}
