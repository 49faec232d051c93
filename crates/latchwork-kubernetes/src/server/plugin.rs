//! The exec plugin of a kubeconfig: a program that prints a login.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use jiff::Timestamp;
use kube::config::{ExecConfig, Kubeconfig};
use latchwork_store::{BackendError, BackendErrorKind, Effect};
use latchwork_wire::program;
use serde::Deserialize;
use serde_json::json;

/// What a plugin prints.
#[derive(Deserialize)]
struct Printed {
    status: Option<Login>,
}

/// What a plugin gives.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Login {
    pub(super) token: Option<String>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

impl Login {
    /// How long it is good from now on, by this wall clock.
    pub(super) fn lifetime(&self, wall: Duration) -> Option<Duration> {
        let until: Timestamp = self.expiration_timestamp.as_ref()?.parse().ok()?;
        let until = Duration::from_millis(until.as_millisecond().try_into().unwrap_or(0));
        Some(until.saturating_sub(wall))
    }
}

/// A plugin for messages: its program without its folder. Arguments and variables may have secrets.
pub(super) fn shown(plugin: &ExecConfig) -> String {
    let program = plugin.command.as_deref().unwrap_or_default();
    let name = Path::new(program).file_name().unwrap_or_default().to_string_lossy();
    format!("the exec plugin `{name}` of the kubeconfig")
}

/// Runs a plugin for its login. Blocks, for [`program::LIMIT`] at most. No error repeats what it has printed.
pub(super) fn run(plugin: &ExecConfig) -> Result<Login, BackendError> {
    let named = shown(plugin);
    let Some(program) = plugin.command.as_deref().filter(|program| !program.is_empty()) else {
        return Err(wrong(format!("{named} has no command"), "name its command in the kubeconfig"));
    };
    let mut command = Command::new(program);
    command.args(plugin.args.iter().flatten());
    for variable in plugin.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    let mut spec = json!({"interactive": false});
    if let Some(cluster) = &plugin.cluster {
        spec["cluster"] = serde_json::to_value(cluster).unwrap_or_default();
    }
    let asked = json!({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec});
    command.env("KUBERNETES_EXEC_INFO", asked.to_string());
    let ran = program::run(&mut command).map_err(|error| {
        // Its text would have no more than the system's words.
        let message = format!("{named} cannot be run: {error}");
        wrong(message, "install it, or correct its command in the kubeconfig")
    })?;
    match ran.status {
        None => Err(failed(&named, &format!("did not end within {:?}", program::LIMIT))),
        Some(status) if !status.success() => {
            Err(failed(&named, &format!("failed: {}", program::how(status))))
        }
        Some(_) => read(&ran.output).map_err(|problem| failed(&named, &problem)),
    }
}

/// The login in what was printed: JSON, or YAML as kubectl takes it too.
fn read(printed: &[u8]) -> Result<Login, String> {
    let status = match serde_json::from_slice::<Printed>(printed) {
        Ok(printed) => printed.status,
        Err(error) => {
            let place = format!("line {}, column {}", error.line(), error.column());
            let nonsense = || format!("printed no ExecCredential ({place})");
            let text = std::str::from_utf8(printed).map_err(|_| nonsense())?;
            // A mapping of YAML whose fields are kept.
            let fields = Kubeconfig::from_yaml(text).map_err(|_| nonsense())?.other;
            let status = fields.get("status").cloned();
            status.map(serde_json::from_value).transpose().map_err(|_| nonsense())?
        }
    };
    let login = status.ok_or("printed no status with a login")?;
    let until = login.expiration_timestamp.as_ref();
    if until.is_some_and(|until| until.parse::<Timestamp>().is_err()) {
        return Err("printed an expirationTimestamp that is no time".into());
    }
    if login.client_certificate_data.is_some() != login.client_key_data.is_some() {
        return Err(
            "printed a certificate without its key, or a key without its certificate".into()
        );
    }
    let is_sendable =
        |token: &String| !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
    match &login.token {
        Some(token) if !is_sendable(token) => Err("printed a token that no header can have".into()),
        None if login.client_key_data.is_none() => {
            Err("printed neither a token nor a certificate".into())
        }
        _ => Ok(login),
    }
}

/// A later try may succeed.
fn failed(named: &str, problem: &str) -> BackendError {
    let message = format!("cannot log in to the API server: {named} {problem}");
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message).with_next_step(
        "run the plugin alone, with the arguments and variables of the kubeconfig: it has to print an ExecCredential \
         and to exit with 0",
    )
}

fn wrong(message: String, step: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message).with_next_step(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_script(script: &str) -> Result<Login, BackendError> {
        run(&ExecConfig {
            command: Some("/bin/sh".into()),
            args: Some(vec!["-c".into(), script.into(), "ARG-s3cret".into()]),
            env: Some(vec![
                [("name".to_owned(), "KEY".to_owned()), ("value".to_owned(), "s3cret".to_owned())]
                    .into(),
            ]),
            api_version: Some("client.authentication.k8s.io/v1".into()),
            ..ExecConfig::default()
        })
    }

    #[test]
    fn a_plugin_prints_a_login_as_json_or_yaml() {
        let json = "echo '{\"status\": {\"token\": \"abc\", \"expirationTimestamp\": \"2030-01-01T00:00:10Z\"}}'";
        let login = of_script(json).unwrap_or_else(|error| panic!("{error}"));
        let wall = Duration::from_secs(1_893_456_000);
        assert_eq!(
            (login.token.as_deref(), login.lifetime(wall)),
            (Some("abc"), Some(Duration::from_secs(10)))
        );
        let yaml = "printf 'kind: ExecCredential\\nstatus:\\n  token: abc\\n'";
        let login = of_script(yaml).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((login.token.as_deref(), login.lifetime(wall)), (Some("abc"), None));
        // It gets its variables and the request, and no input.
        let told = "cat; test $KEY = s3cret && echo $KUBERNETES_EXEC_INFO | grep -q '\"interactive\":false' && \
                    echo '{\"status\":{\"token\":\"t\"}}'";
        assert!(of_script(told).is_ok());
    }

    /// H500
    #[test]
    fn h500_a_failure_of_a_plugin_repeats_no_secret() {
        for (script, words) in [
            (
                "echo s3cret; echo s3cret >&2; exit 7",
                "`sh` of the kubeconfig failed: exit status 7",
            ),
            ("kill -9 $$ s3cret", "ended by signal 9"),
            ("echo '{\"status\": {\"token\": \"s3cret\"'", "ExecCredential (line "),
            ("printf 'a: [s3cret'", "printed no ExecCredential"),
            ("echo '{\"status\": {\"token\": [\"s3cret\"]}}'", "printed no ExecCredential"),
            ("echo '{\"token\": \"s3cret\"}'", "no status"),
            ("echo '{\"status\": {}}'", "neither a token nor"),
            ("echo '{\"status\": {\"token\": \"s3cret \\n\"}}'", "no header"),
            (
                "echo '{\"status\": {\"token\": \"s3cret\", \"expirationTimestamp\": \"s3cret\"}}'",
                "no time",
            ),
            ("printf '\\377s3cret'", "printed no ExecCredential"),
        ] {
            let error = of_script(script).err().unwrap();
            assert_eq!(error.kind, BackendErrorKind::Unreachable);
            let said = format!("{error:?}");
            assert!(said.contains(words), "{script}: {said}");
            assert!(!said.contains("s3cret"), "{script}: {said}");
        }
        let plugin =
            ExecConfig { command: Some("/s3cret/no-such-plugin".into()), ..ExecConfig::default() };
        let error = run(&plugin).err().unwrap();
        assert_eq!(error.kind, BackendErrorKind::Invalid);
        assert!(error.message.contains("`no-such-plugin`"), "{error}");
        assert!(!error.message.contains("s3cret"), "{error}");
    }
}
