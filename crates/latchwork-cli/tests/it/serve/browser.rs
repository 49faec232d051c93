//! A headless Chromium, driven by its own driver as the WebDriver standard describes it.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use latchwork_services::Port;
use serde_json::{Value, json};

use super::client::Address;
use crate::common::{SOON, eventually};

/// Keys that are no characters, as WebDriver names them.
pub(super) const ENTER: char = '\u{e007}';
pub(super) const ESCAPE: char = '\u{e00c}';
pub(super) const TAB: char = '\u{e004}';
pub(super) const DOWN: char = '\u{e015}';
pub(super) const END: char = '\u{e010}';

/// A browser with one window. It ends when it is dropped.
pub(super) struct Browser {
    driver: Child,
    address: Address,
    session: String,
    _port: Port,
}

impl Browser {
    /// Starts one that shows the page of the service at this port.
    pub(super) fn at(port: u16) -> Self {
        let own = Port::reserve().unwrap();
        let mut driver = Command::new("chromedriver");
        driver.arg(format!("--port={}", own.number()));
        let driver = driver.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let address = Address::Tcp(own.number());
        eventually("a driver", || std::net::TcpStream::connect(("127.0.0.1", own.number())).ok());
        let mut browser = Self { driver, address, session: String::new(), _port: own };
        let flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1280,800",
        ];
        let options = json!({"binary": "/usr/bin/chromium", "args": flags});
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let begun = browser.send("POST", "/session", &wanted);
        browser.session = format!("/session/{}", begun["sessionId"].as_str().unwrap());
        browser.go(&format!("http://localhost:{port}/"));
        browser
    }

    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, text) = self.said(method, path, body);
        assert_eq!(status, "200", "{method} {path}: {text}");
        serde_json::from_str::<Value>(&text).unwrap()["value"].clone()
    }

    fn said(&self, method: &str, path: &str, body: &Value) -> (String, String) {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let stream = self.address.send(&format!("{method} {path}"), &[], &body);
        answer(BufReader::new(stream)).unwrap()
    }

    #[track_caller]
    fn ask(&self, path: &str, body: &Value) -> Value {
        self.send("POST", &format!("{}{path}", self.session), body)
    }

    /// Opens one more tab, and an address in it.
    #[track_caller]
    pub(super) fn tab(&self, url: &str) {
        let made = self.ask("/window/new", &json!({"type": "tab"}));
        self.ask("/window", &json!({"handle": made["handle"]}));
        self.go(url);
    }

    /// Opens an address.
    #[track_caller]
    pub(super) fn go(&self, url: &str) {
        self.ask("/url", &json!({ "url": url }));
    }

    /// Runs a script in the page, and returns what it returns; a promise is waited for.
    #[track_caller]
    pub(super) fn run(&self, script: &str) -> Value {
        self.ask("/execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true in the page.
    #[track_caller]
    pub(super) fn sees(&self, what: &str) {
        let start = Instant::now();
        let script = format!("return Boolean({what});");
        while self.run(&script) != true {
            if start.elapsed() > 2 * SOON {
                let body = self.run("return document.body.innerText");
                panic!("not so: {what} on\n{}", body.as_str().unwrap_or_default());
            }
            std::thread::sleep(SOON / 300);
        }
    }

    /// Waits until a text is on the page.
    #[track_caller]
    pub(super) fn sees_text(&self, text: &str) {
        self.sees(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// Presses keys, one after the other, as a person does.
    #[track_caller]
    pub(super) fn keys(&self, keys: impl AsRef<str>) {
        let press = |key: char| {
            let key = key.to_string();
            [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})]
        };
        let all: Vec<_> = keys.as_ref().chars().flat_map(press).collect();
        self.ask(
            "/actions",
            &json!({"actions": [{"type": "key", "id": "keyboard", "actions": all}]}),
        );
    }

    /// Clicks what this selector finds first.
    #[track_caller]
    pub(super) fn click(&self, selector: &str) {
        eventually("a click", || {
            let found = self.ask("/element", &json!({"using": "css selector", "value": selector}));
            let id = found.as_object().unwrap().values().next().unwrap().as_str().unwrap();
            let path = format!("{}/element/{id}/click", self.session);
            let (status, text) = self.said("POST", &path, &json!({}));
            // The page may have drawn it anew in between.
            let is_old = text.contains("stale element reference");
            assert!(status == "200" || is_old, "{selector}: {text}");
            (!is_old).then_some(())
        });
    }

    /// Emulates a device and its person's wishes.
    #[track_caller]
    pub(super) fn device(&self, width: u32, height: u32, wishes: &[(&str, &str)]) {
        let tell = |command: &str, values: Value| {
            self.ask("/goog/cdp/execute", &json!({"cmd": command, "params": values}))
        };
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        tell("Emulation.setDeviceMetricsOverride", size);
        let wishes: Vec<_> =
            wishes.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        tell("Emulation.setEmulatedMedia", json!({ "features": wishes }));
    }

    /// What the browser complains about: errors of scripts, and what the policy of the page forbids.
    #[track_caller]
    pub(super) fn complaints(&self) -> Vec<String> {
        let all = self.ask("/se/log", &json!({"type": "browser"}));
        let text = |one: &Value| format!("{} {}", one["level"], one["message"]);
        all.as_array().unwrap().iter().map(text).collect()
    }
}

/// Reads the status and the body of an answer by its length: the driver keeps the connection open.
fn answer(mut stream: impl BufRead) -> io::Result<(String, String)> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    while line.trim() != "" {
        line.clear();
        stream.read_line(&mut line)?;
        if let Some(number) = line.to_lowercase().strip_prefix("content-length:") {
            length = number.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.send("DELETE", &self.session, &Value::Null);
        } else if !self.session.is_empty() {
            // The driver ends its browser with itself.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                self.send("DELETE", &self.session, &Value::Null)
            }));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
