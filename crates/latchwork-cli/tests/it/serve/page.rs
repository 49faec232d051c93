//! The page of the service in a real browser: locks that come and go, 10,000 of them, and what people do there.

use std::time::{Duration, Instant};

use latchwork_services::{RedisOptions, RedisServer};

use super::Service;
use super::browser::{Browser, DOWN, END, ENTER, ESCAPE, TAB};
use super::client::Address;
use crate::common::{Running, SOON};

/// A service, and a browser that shows its page.
fn shown(options: &[&str]) -> (Service, Browser) {
    let service = Service::start(options);
    let browser = Browser::at(port(&service));
    browser.sees("document.querySelector('#live').dataset.state === 'live'");
    // Whatever happens from here on, the page is not loaded again.
    browser.run("window.isTheSame = true");
    (service, browser)
}

fn port(service: &Service) -> u16 {
    match service.address {
        Address::Tcp(port) => port,
        Address::Unix(_) => unreachable!("a browser needs a port"),
    }
}

/// An expression: the row of this lock, or nothing.
fn row(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('.row.body')].find((row) => row.dataset.name === {name:?})"
    )
}

/// An expression: the text of a cell of this lock's row.
fn cell(name: &str, cell: &str) -> String {
    format!("{}?.querySelector('.{cell}').innerText", row(name))
}

const LONG: &str = r#"{"ttl_ms": 60000, "holder": "ada@web-1"}"#;

#[test]
fn the_page_shows_locks_as_they_come_and_go() {
    let (service, browser) = shown(&[]);
    browser.sees_text("No lock is held or waited for.");
    // A client that does not renew is marked before its lock is free.
    browser.run(
        "const isMarked = () => document.querySelector('.is-late') && document.querySelector('#urgent .late'); \
         window.wasLate = false; setInterval(() => { window.wasLate ||= Boolean(isMarked()); }, 50)",
    );
    service.hold("silent", r#"{"ttl_ms": 6000}"#);
    let hold = service.hold("shop", LONG);
    browser.sees(&format!("{} === 'ada@web-1'", cell("shop", "holder")));
    // The time left is that of the client, and never more than its ttl.
    browser.sees(&format!("{}.match(/^5\\ds$/)", cell("shop", "left")));
    let waiter = service.wait_for("shop", &[], r#"{"wait_ms": 30000, "holder": "bob@web-2"}"#);
    browser.sees(&format!("{} === '1'", cell("shop", "waiting")));
    // A lock that another program holds.
    let words =
        ["run", "beside", "--holder", "eve@cron", "--", "sh", "-c", "echo up; sleep 300; echo"];
    let beside = Running::start(service.store.latchwork(&words));
    beside.stdout.until("up");
    browser.sees(&format!("{} === 'eve@cron'", cell("beside", "holder")));
    drop(beside);
    browser.sees(&format!("!{}", row("beside")));
    service.release(&hold).is(200);
    let next = waiter.answer().is(200).get("hold");
    browser.sees(&format!("{} === 'bob@web-2'", cell("shop", "holder")));
    browser.sees(&format!("{} === '–'", cell("shop", "waiting")));
    service.release(&next).is(200);
    browser.sees_text("No lock is held or waited for.");
    browser.sees("window.wasLate");
    assert_eq!(browser.run("return window.isTheSame"), true);
    assert_eq!(browser.complaints(), [""; 0]);
}

/// The rows on the screen are all that there are, so a person scrolls and searches 10,000 locks as easily as 10.
#[test]
fn ten_thousand_locks_scroll_smoothly_on_the_page() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let _held = latchwork::block_on(async {
        let manager = latchwork::connect(&server.url()).await.unwrap();
        let manager = manager.ttl(Duration::from_secs(600)).holder("ada@web-1");
        let mut held = Vec::new();
        for number in 0..10_000 {
            held.push(manager.mutex(format!("lock-{number:05}")).acquire().await.unwrap());
        }
        held
    });
    let (_service, browser) = shown(&["--store", &server.url()]);
    browser.sees("document.querySelector('#count').innerText.replace(/\\D/g, '') === '10000'");
    let rows = "document.querySelectorAll('.row.body').length";
    browser.sees(&format!("{rows} > 10 && {rows} < 60"));
    // Two screens a picture, and how long each picture took.
    let took = browser.run(
        "return new Promise((done) => {
            const scroll = document.querySelector('#scroll');
            const took = [];
            let last = performance.now();
            const step = (now) => {
                took.push(now - last);
                last = now;
                scroll.scrollTop += 1200;
                if (took.length < 120) requestAnimationFrame(step);
                else done(took.slice(1).sort((a, b) => a - b));
            };
            requestAnimationFrame(step);
        })",
    );
    let took: Vec<f64> = took.as_array().unwrap().iter().map(|ms| ms.as_f64().unwrap()).collect();
    let median = took[took.len() / 2];
    println!(
        "a picture while scrolling: {median:.1} ms, p95 {:.1} ms",
        took[took.len() * 95 / 100]
    );
    // A screen shows 60 pictures a second; here the processors draw them, and do other things as well.
    assert!(median < 70.0, "{took:?}");
    browser.sees(&format!("{rows} < 60"));
    browser.run("document.querySelector('#table').focus()");
    browser.keys(END.to_string());
    browser.sees(&row("lock-09999"));
    browser.keys("/lock-00042");
    browser.sees(&format!("{rows} === 1"));
    browser.sees(&row("lock-00042"));
}

/// Markup, an escape sequence, marks that turn the writing direction, characters without a width.
#[test]
fn hostile_texts_stay_text_on_the_page() {
    let (service, browser) = shown(&[]);
    let holder = "\\u001b[31m<img src=x onerror=alert(1)>\\u202e\\u2066gnp\\u200b\\u3164\\u00a0</script><script>alert(2)</script>";
    let name = "%3Cb%3Ebad%3C%2Fb%3E%E2%80%AEeman%22%3E%3Cscript%3Ealert(3)%3C%2Fscript%3E";
    service.hold(name, &format!(r#"{{"ttl_ms": 60000, "holder": "{holder}"}}"#));
    let _waiter =
        service.wait_for(name, &[], &format!(r#"{{"wait_ms": 30000, "holder": "{holder}"}}"#));
    let shown = r"\u{1b}[31m<img src=x onerror=alert(1)>\u{202e}\u{2066}gnp\u{200b}\u{3164}\u{a0}</script><script>alert(2)</script>";
    browser
        .sees(&format!("document.querySelector('.row.body .holder')?.textContent === {shown:?}"));
    browser.click(".row.body");
    browser.sees(&format!(
        "document.querySelector('#detail .parties')?.textContent.startsWith({shown:?})"
    ));
    browser.sees(
        "document.querySelector('#detail h2').textContent.startsWith('<b>bad</b>\\\\u{202e}eman')",
    );
    for view in ["#/activity", "#/elections", "#/sessions", "#/locks"] {
        browser.run(&format!("location.hash = {view:?}"));
        browser.sees(&format!(
            "document.querySelector({:?}).hidden === false",
            view.replace("#/", "#")
        ));
        let made = "document.querySelectorAll('img, b, iframe, script:not([src])').length";
        assert_eq!(browser.run(&format!("return {made}")), 0, "{view}");
        let hidden = r"/[\u001b\u202e\u2066\u200b\u3164]/.test(document.documentElement.textContent + document.title)";
        assert_eq!(browser.run(&format!("return {hidden}")), false, "{view}");
    }
    // No alert was opened, or the driver would have refused the scripts; and nothing was tried that the policy forbids.
    assert_eq!(browser.complaints(), [""; 0]);
    // A name that fits into no head is read by a body.
    let long = "é".repeat(30_000);
    let permits = r#""mode": "permits", "permits": {"take": 1, "of": 2}"#;
    let body = format!(r#"{{"ttl_ms": 60000, "locks": [{{"name": "{long}", {permits}}}]}}"#);
    service.ask("POST /v1/holds", &body).is(200);
    browser.sees(&format!("{} === 'permits 1/2'", cell(&long, "kind")));
    // What is wrong with one lock is shown at that lock, and not above all of them.
    browser.run(
        "const send = window.fetch; \
         window.fetch = (url, options) => (String(url).includes('name=refused') \
         ? Promise.resolve(new Response('{\"error\": \"not this one\"}', {status: 400})) : send(url, options))",
    );
    service.hold("refused", LONG);
    browser.run("location.hash = '#/locks/refused'");
    browser.sees("document.querySelector('#detail .error')?.innerText.includes('not this one')");
    browser.sees("document.querySelector('#notice').hidden");
}

#[test]
fn the_page_shows_a_locks_past_as_a_picture() {
    let (service, browser) = shown(&[]);
    let hold = service.hold("shop", r#"{"ttl_ms": 60000, "holder": "first"}"#);
    browser.sees(&row("shop"));
    browser.click(".row.body");
    let waiter =
        service.wait_for("shop", &[], r#"{"wait_ms": 60000, "ttl_ms": 3000, "holder": "second"}"#);
    browser.sees("document.querySelector('svg.timeline .waited')");
    service.release(&hold).is(200);
    // Nobody renews it, so it is lost.
    waiter.answer().is(200);
    let label = "document.querySelector('svg.timeline').getAttribute('aria-label')";
    browser.sees("document.querySelectorAll('svg.timeline .held').length === 2");
    browser.sees("document.querySelector('svg.timeline .handover')");
    browser.sees("document.querySelector('svg.timeline .held.lost') && document.querySelector('svg.timeline .cross')");
    browser.sees(&format!("{label}.includes('Nobody holds it')"));
    let titles = browser.run("return [...document.querySelectorAll('svg.timeline rect title')].map((one) => one.textContent)");
    let titles = titles.to_string();
    assert!(titles.contains("first held it for") && titles.contains(": released"), "{titles}");
    assert!(titles.contains("second waited for") && titles.contains(": then got it"), "{titles}");
    assert!(titles.contains("second held it for") && titles.contains(": lost"), "{titles}");
    browser.sees("[...document.querySelectorAll('#detail .story li.lost')].length === 1");
}

#[test]
fn the_page_catches_up_after_a_restart_of_the_service() {
    let (service, browser) = shown(&[]);
    service.hold("before", r#"{"ttl_ms": 2000, "holder": "me"}"#);
    browser.sees(&row("before"));
    let service = service.restart(&[]);
    let hold = service.hold("after", LONG);
    browser.sees(&row("after"));
    browser.sees("document.querySelector('#live').dataset.state === 'live'");
    // Of the service before: it ends by its lease.
    browser.sees(&format!("!{}", row("before")));
    service.release(&hold).is(200);
    browser.sees_text("No lock is held or waited for.");
    assert_eq!(browser.run("return window.isTheSame"), true);
}

#[test]
fn the_page_shows_elections_and_the_doctors_findings() {
    let (service, browser) = shown(&[]);
    let body = r#"{"ttl_ms": 60000, "candidate": "10.0.0.7:80", "holder": "a"}"#;
    service.ask("POST /v1/elections/scheduler/campaign", body).is(200);
    browser.keys("2");
    browser.sees("document.querySelector('#elections .leader bdi')?.textContent === '10.0.0.7:80'");
    browser.sees("document.querySelector('#elections h2').textContent === 'scheduler'");
    let body = r#"{"ttl_ms": 9000, "wait_ms": 60000, "candidate": "10.0.0.8:80", "holder": "b"}"#;
    let _other = service.address.send("POST /v1/elections/scheduler/campaign", &[], body);
    browser.sees("document.querySelector('#elections .queue bdi')?.textContent === '10.0.0.8:80'");
    // Times go on, and a link keeps its focus while they do.
    browser.run("document.querySelector('#elections a').focus()");
    let time = browser.run("return document.querySelector('#elections .leader span').textContent");
    browser
        .sees(&format!("document.querySelector('#elections .leader span').textContent !== {time}"));
    assert_eq!(browser.run("return document.activeElement.textContent"), "scheduler");
    browser.keys("5");
    browser.sees("document.querySelectorAll('#doctor .findings li').length > 0");
    // A verdict with warnings below it is no plain "safe".
    browser.sees("document.querySelector('#doctor .verdict.warned') && document.querySelector('#doctor .badge.warning')");
    browser.keys("4");
    browser.sees("document.querySelector('#activity li.granted')");
}

/// A session with its locks: in a view of its own, at each lock, and at the lock that the session is.
#[test]
fn the_page_shows_sessions_and_what_they_keep() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let (service, browser) = shown(&["--store", &server.url()]);
    browser.run("location.hash = '#/sessions'");
    browser
        .sees("document.querySelector('#sessions').innerText.includes('No client has a session.')");
    let begun = service.ask("POST /v1/sessions", r#"{"ttl_ms": 60000, "holder": "ada@web-1"}"#);
    let session = begun.is(200).get("session");
    let body = serde_json::json!({ "session": session, "holder": "ada-hold" }).to_string();
    let holds: Vec<_> = (0..10).map(|it| service.hold(&format!("lock-{it}"), &body)).collect();
    let text = "document.querySelector('#sessions .card')?.innerText";
    browser.sees(&format!("{text}?.includes('10 locks')"));
    browser.sees(&format!("{text}.includes('ada@web-1') && {text}.includes('and 2 more')"));
    browser.sees(&format!("/for \\d+s · (59|1m|\\d\\d)s? left/.test({text})"));
    // A link keeps its focus while the times go on, and leads to the lock.
    browser.run("document.querySelector('#sessions .kept a').focus()");
    let time = browser.run("return document.querySelector('#sessions .leader span').textContent");
    browser
        .sees(&format!("document.querySelector('#sessions .leader span').textContent !== {time}"));
    assert_eq!(browser.run("return document.activeElement.textContent"), "lock-0");
    browser.keys(ENTER.to_string());
    let people = "document.querySelector('#detail .people')?.innerText";
    browser.sees(&format!("{people}?.includes('ada-hold') && {people}.includes('session ')"));
    browser.sees(&format!("{} === \"ada-hold\\nsession\"", cell("lock-0", "holder")));
    // From there to the session, which lists its locks.
    browser.click("#detail .people a");
    browser.sees(&format!("{people}?.includes('Keeps 10 locks')"));
    browser.sees("document.querySelector('#detail .facts').innerText.includes('session')");
    service.release(&holds[9]).is(200);
    browser.sees(&format!("{people}?.includes('Keeps 9 locks')"));
    service.ask(&format!("DELETE /v1/sessions/{session}"), "").is(200);
    browser.keys("3");
    browser
        .sees("document.querySelector('#sessions').innerText.includes('No client has a session.')");
    assert_eq!(browser.complaints(), [""; 0]);
}

/// A page of another site in the same browser, as somebody's mail would open it.
#[test]
fn another_site_in_the_browser_is_refused() {
    use std::io::{Read as _, Write as _};
    let (service, browser) = shown(&[]);
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = other.accept().unwrap();
        let mut bytes = [0; 4096];
        let _ = stream.read(&mut bytes).unwrap();
        let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 14\r\nConnection: close\r\n\r\n<title>x</title>";
        stream.write_all(&page.as_bytes()[..page.len() - 2]).unwrap();
    });
    browser.go(&format!("http://{address}/"));
    server.join().unwrap();
    let path = format!("http://localhost:{}/v1/locks/stolen", port(&service));
    for mode in ["cors", "no-cors"] {
        let answer = browser.run(&format!(
            "return fetch({path:?}, {{method: 'POST', mode: '{mode}', body: '{{\"ttl_ms\": 60000}}'}})
                .then((answer) => answer.type + answer.status, (error) => 'refused')"
        ));
        assert!(["refused", "opaque0"].contains(&answer.as_str().unwrap()), "{mode}: {answer}");
    }
    let read = browser
        .run(&format!("return fetch({path:?}).then((answer) => answer.text(), () => 'refused')"));
    assert_eq!(read, "refused");
    assert!(!service.is_held("stolen"));
}

#[test]
fn the_page_fits_a_phone() {
    let (service, browser) = shown(&[]);
    let name = format!("{}x", "a-very-long-name/".repeat(12));
    let long = service.hold(
        &name.replace('/', "%2F"),
        &format!(r#"{{"ttl_ms": 60000, "holder": "{}"}}"#, "x".repeat(300)),
    );
    browser.device(360, 740, &[]);
    browser.sees(&row(&name));
    let is_wider = "return document.documentElement.scrollWidth > 360";
    assert_eq!(browser.run(is_wider), false);
    browser.click(".row.body");
    browser.sees("!document.querySelector('#detail').hidden");
    browser.sees("document.querySelector('svg.timeline')");
    // The lock takes the whole screen, and Back leads to the list.
    browser.sees("document.querySelector('#detail').getBoundingClientRect().width === 360");
    assert_eq!(browser.run(is_wider), false);
    let inside =
        "const one = document.querySelector('#detail'); return one.scrollWidth > one.clientWidth";
    assert_eq!(browser.run(inside), false, "the lock scrolls sideways");
    browser.run("history.back()");
    browser.sees("document.querySelector('#detail').hidden");
    for view in ["elections", "sessions", "activity", "doctor"] {
        browser.run(&format!("location.hash = '#/{view}'"));
        browser.sees(&format!("!document.querySelector('#{view}').hidden"));
        assert_eq!(browser.run(is_wider), false, "{view}");
    }
    service.release(&long).is(200);
}

const TOKENS: &str = r#"{"tokens": [
    {"name": "root", "token": "token-of-an-administrator", "rights": ["read", "lock", "admin"]},
    {"name": "eyes", "token": "token-of-an-onlooker", "rights": ["read"]}]}"#;

/// A file of tokens, which only its owner may read.
fn tokens() -> (tempfile::TempDir, String) {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens.json");
    std::fs::write(&path, TOKENS).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let name = path.to_str().unwrap().to_owned();
    (dir, name)
}

/// With the right of an administrator, another limit is two keys away; nobody is evicted by it.
#[test]
fn the_page_changes_the_limit_of_a_semaphore() {
    let (_dir, path) = tokens();
    let (service, browser) = shown(&["--tokens", &path]);
    let permits = r#"{"ttl_ms": 60000, "mode": "permits", "permits": {"take": 2, "of": 3}}"#;
    let hold = service.hold("alpha", permits);
    browser.sees(&row("alpha"));
    browser.run("location.hash = '#/locks/alpha'");
    browser.sees("document.querySelector('#detail h2')?.textContent === 'alpha'");
    browser.keys("l");
    let buttons = "return document.querySelectorAll('#detail .acts button, dialog[open]').length";
    assert_eq!(browser.run(buttons), 0, "without the right");
    browser.keys("t");
    browser.sees("document.activeElement.type === 'password'");
    browser.keys(format!("token-of-an-administrator{ENTER}"));
    browser.sees("document.querySelectorAll('#detail .acts button').length === 2");
    browser.keys("l");
    browser.sees("document.querySelector('#resize-dialog[open] input')?.value === '3'");
    browser.keys(format!("0{ENTER}"));
    browser
        .sees("document.querySelector('#resize-dialog .error').textContent.includes('1 or more')");
    browser.run("document.querySelector('#resize-dialog input').select()");
    browser.keys(format!("1{ENTER}"));
    browser.sees("!document.querySelector('dialog[open]')");
    browser.sees("document.querySelector('#say').textContent.includes('changed from 3 to 1')");
    browser.sees("document.querySelector('#detail .facts').textContent.includes('permits 2/1')");
    service.renew(&hold).is(200);
}

/// From the token to the forced release, by keys alone; the focus is seen all the way.
#[test]
fn a_forced_release_works_by_keyboard_alone() {
    let (_dir, path) = tokens();
    let (service, browser) = shown(&["--tokens", &path]);
    for name in ["alpha", "beta"] {
        service.hold(name, LONG);
        browser.sees(&row(name));
    }
    // Without the right there is no such button, and its key does nothing.
    browser.keys("/beta");
    browser.sees(&format!("!{}", row("alpha")));
    browser.keys(format!("{ENTER}{ENTER}"));
    browser.sees("document.querySelector('#detail h2')?.textContent === 'beta'");
    browser.keys("f");
    assert_eq!(
        browser.run("return document.querySelectorAll('#detail .danger, dialog[open]').length"),
        0
    );
    // The token is typed, and is kept neither in an address nor in what outlives the page.
    browser.keys("t");
    browser.sees("document.activeElement.type === 'password'");
    browser.keys(format!("token-of-an-administrator{ENTER}"));
    browser.sees("document.querySelector('#detail .danger')");
    browser.keys("f");
    browser.sees("document.querySelector('#release-dialog[open]')");
    // A reason is asked for.
    browser.keys(format!("{TAB}{TAB}{ENTER}"));
    browser
        .sees("document.querySelector('#release-dialog .error').textContent.includes('Say why')");
    assert!(service.is_held("beta"));
    browser.keys(format!("it hangs{TAB}{TAB}"));
    let outline = browser.run("return getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid", "the focus is not seen");
    browser.keys(ENTER.to_string());
    browser.sees("!document.querySelector('dialog[open]')");
    browser.sees(
        "document.querySelector('#say').textContent.startsWith('beta: taken away from 1 holder')",
    );
    assert!(!service.is_held("beta") && service.is_held("alpha"));
    service.process.stderr.until("force-release");
    let kept = "JSON.stringify([location.href, document.cookie, {...localStorage}, {...sessionStorage}, performance.getEntries().map((one) => one.name)])";
    let kept = browser.run(&format!("return {kept}")).to_string();
    assert!(!kept.contains("token-of"), "{kept}");
    browser.keys(ESCAPE.to_string());
    browser.sees("document.querySelector('#detail').hidden");
    // On the list again.
    browser.keys(format!("/{ESCAPE}{DOWN}"));
    browser.sees(
        "document.querySelector('#table').getAttribute('aria-activedescendant') === 'selected-row'",
    );
    browser.keys("?");
    browser.sees("document.querySelectorAll('#help-dialog[open] kbd').length > 5");
}

#[test]
fn the_page_asks_for_a_token_where_one_is_needed() {
    let (_dir, path) = tokens();
    let service = Service::start(&["--tokens", &path, "--require-token"]);
    let browser = Browser::at(port(&service));
    browser.sees("document.querySelector('#token-dialog[open]')");
    browser.keys(format!("token-of-nobody-at-all{ENTER}"));
    browser.sees("document.querySelector('#token-dialog[open] .error')?.textContent.includes('does not know it')");
    browser.click("#keep-token");
    browser.run("document.querySelector('#token-dialog input').focus()");
    browser.keys(format!("token-of-an-onlooker{ENTER}"));
    browser.sees("document.querySelector('#live').dataset.state === 'live'");
    // Kept for this tab, because the person asked for it.
    browser.go(&format!("http://localhost:{}/", port(&service)));
    browser.sees("document.querySelector('#live').dataset.state === 'live'");
    assert_eq!(browser.run("return document.querySelectorAll('dialog[open]').length"), 0);
    // Nothing that was shown stays when the token is revoked.
    let root = ("Authorization", "Bearer token-of-an-administrator");
    service.address.ask("POST /v1/locks/secret", &[root], LONG).is(200);
    browser.sees(&row("secret"));
    browser.click(".row.body");
    browser.sees("document.querySelector('#detail').innerText.includes('ada@web-1')");
    std::fs::write(&path, TOKENS.replace("token-of-an-onlooker", "token-of-another-one")).unwrap();
    service.process.signal(rustix::process::Signal::HUP);
    browser.sees("document.querySelector('#token-dialog[open]')");
    browser.sees(&format!("!{}", row("secret")));
    browser.sees("!document.querySelector('#locks').innerText.includes('ada@web-1')");
    browser.sees("!document.querySelector('#detail').innerText.match('ada@web-1|free|Nobody')");
}

#[test]
fn a_screen_reader_finds_its_way_on_the_page() {
    let (service, browser) = shown(&[]);
    for number in 0..3 {
        service.hold(&format!("lock-{number}"), LONG);
    }
    browser.sees("document.querySelectorAll('.row.body').length === 3");
    for selector in [
        "header",
        "nav[aria-label]",
        "main",
        "h1",
        "[role=grid][aria-label]",
        "#say[aria-live]",
        "html[lang]",
    ] {
        assert_eq!(
            browser.run(&format!("return document.querySelectorAll({selector:?}).length > 0")),
            true,
            "{selector}"
        );
    }
    browser.sees("document.querySelector('#table').getAttribute('aria-rowcount') === '4'");
    let rows = browser.run("return [...document.querySelectorAll('.row.body')].map((row) => row.getAttribute('aria-rowindex')).sort().join()");
    assert_eq!(rows, "2,3,4");
    // All that can be pressed has a name.
    let nameless = browser.run(
        "return [...document.querySelectorAll('button, a, input')]
            .filter((one) => !(one.ariaLabel || one.textContent.trim() || one.labels?.length)).map((one) => one.outerHTML)",
    );
    assert_eq!(nameless.as_array().unwrap().len(), 0, "{nameless}");
    browser.click(".head .holder button");
    browser
        .sees("document.querySelector('.head .holder').getAttribute('aria-sort') === 'ascending'");
    // Without motion for those who asked for none.
    let motion = "return getComputedStyle(document.querySelector('.fill')).transitionDuration";
    assert_eq!(browser.run(motion), "1s");
    browser.device(1280, 800, &[("prefers-reduced-motion", "reduce")]);
    assert_eq!(browser.run(motion), "0s");
    let background = "return getComputedStyle(document.body).backgroundColor";
    browser.device(1280, 800, &[("prefers-color-scheme", "light")]);
    let light = browser.run(background);
    browser.device(1280, 800, &[("prefers-color-scheme", "dark")]);
    assert_ne!(browser.run(background), light);
}

#[test]
fn a_browser_that_knows_the_page_loads_it_once() {
    let service = Service::start(&[]);
    for path in ["/", "/page/app.js", "/page/style.css"] {
        let answer = service.ask(&format!("GET {path}"), "");
        answer.is(200);
        let tag =
            answer.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
        let again = service.address.ask(&format!("GET {path}"), &[("If-None-Match", &tag)], "");
        assert_eq!((again.status, &*again.text), (304, ""), "{path}");
        let other = service.address.ask(&format!("GET {path}"), &[("If-None-Match", "\"x\"")], "");
        assert_eq!(other.status, 200, "{path}");
    }
}

/// A page that was open before an outage of the store shows what it knew, greyed, with its age; and one that is opened
/// meanwhile says that it does not know.
#[test]
fn an_outage_of_the_store_is_no_empty_store() {
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let (service, browser) = shown(&["--store", &server.url()]);
    service.hold("kept", LONG);
    browser.sees(&row("kept"));
    server.stop().unwrap();
    browser.sees("document.body.classList.contains('stale')");
    browser.sees("document.querySelector('#live').innerText === 'store silent'");
    browser.sees(&format!(
        "{} && document.querySelector('#notice').innerText.match(/The store does not answer.* was read \\d+s ago/)",
        row("kept")
    ));
    browser.go(&format!("http://localhost:{}/#/locks", port(&service)));
    browser.run("location.reload()");
    browser.sees(
        "document.querySelector('#empty')?.innerText.includes('Unknown: nobody has answered yet.')",
    );
    browser.sees("document.querySelector('#count').innerText === '–'");
    browser.sees_text("Nothing is known of the locks yet.");
    server.cont().unwrap();
    browser.sees(&row("kept"));
    browser.sees(
        "document.querySelector('#notice').hidden && !document.body.classList.contains('stale')",
    );
    browser.sees("document.querySelector('#live').dataset.state === 'live'");
    // A page that stays open recovers as well, and finds at once what others did meanwhile.
    browser.run("window.isTheSame = true");
    server.stop().unwrap();
    browser.sees("document.body.classList.contains('stale')");
    server.cont().unwrap();
    let words =
        ["--store", &server.url(), "run", "other", "--", "sh", "-c", "echo up; sleep 300; echo"];
    let other = Running::start(service.store.latchwork(&words));
    other.stdout.until("up");
    let start = Instant::now();
    browser.sees(&row("other"));
    assert!(start.elapsed() < 3 * SOON, "after {:?}", start.elapsed());
    browser.sees(
        "!document.body.classList.contains('stale') && document.querySelector('#notice').hidden",
    );
    assert_eq!(browser.run("return window.isTheSame"), true);
}

/// A link shows the same filters and the same lock to somebody else.
#[test]
fn the_address_of_the_page_has_its_filters() {
    let (service, browser) = shown(&[]);
    for name in ["shop/a", "shop/b", "mail/a"] {
        service.hold(&name.replace('/', "%2F"), LONG);
        browser.sees(&row(name));
    }
    let waiter = service.wait_for("shop%2Fb", &[], r#"{"wait_ms": 60000}"#);
    browser.sees(&format!("{} === '1'", cell("shop/b", "waiting")));
    browser.keys("/shop");
    browser.click("[data-which=waited]");
    browser.click("#head .held button");
    browser.keys("u");
    browser.sees("document.querySelectorAll('.row.body').length === 1");
    browser.click(".row.body");
    browser.sees("document.querySelector('#detail h2')?.textContent === 'shop/b'");
    let url = browser.run("return location.href").as_str().unwrap().to_owned();
    for part in ["#/locks/shop%2Fb?", "q=shop", "which=waited", "sort=held", "utc=1"] {
        assert!(url.contains(part), "{part} in {url}");
    }
    browser.go("about:blank");
    browser.go(&url);
    browser.sees("document.querySelector('#detail h2')?.textContent === 'shop/b'");
    browser.sees("document.querySelectorAll('.row.body').length === 1");
    browser.sees("document.querySelector('#search').value === 'shop'");
    browser.sees(
        "document.querySelector('[data-which=waited]').getAttribute('aria-pressed') === 'true'",
    );
    browser.sees("document.querySelector('#zone-button').innerText === 'UTC'");
    drop(waiter);
}

#[test]
fn the_page_shows_locks_below_their_prefixes() {
    let (service, browser) = shown(&[]);
    for name in ["shop/eu/1", "shop/eu/2", "shop/us", "alone/x", "plain"] {
        service.hold(&name.replace('/', "%2F"), LONG);
        browser.sees(&row(name));
    }
    browser.run("document.querySelector('#table').focus()");
    browser.keys("g");
    let shown = "JSON.stringify([...document.querySelectorAll('.row.body')].sort((a, b) => a.getAttribute('aria-rowindex') - b.getAttribute('aria-rowindex')).map((one) => one.querySelector('bdi').textContent))";
    let all = r#"["alone/x","plain","shop/","shop/eu/","shop/eu/1","shop/eu/2","shop/us"]"#;
    browser.sees(&format!("{shown} === {all:?}"));
    browser.sees("[...document.querySelectorAll('.row.group')].some((one) => one.innerText.includes('3 locks') && one.innerText.includes('3 held'))");
    // By keys: the prefix is closed and opened again.
    browser.keys(format!("{DOWN}{DOWN}{DOWN}{ENTER}"));
    browser.sees(&format!("{shown} === {:?}", r#"["alone/x","plain","shop/"]"#));
    browser
        .sees("document.querySelector('#selected-row').getAttribute('aria-expanded') === 'false'");
    browser.keys(ENTER.to_string());
    browser.sees(&format!("{shown} === {all:?}"));
    browser.keys("g");
    browser.sees("!document.querySelector('.row.group')");
}

/// What is urgent stands first: where most wait, and what was lost; and a forced release names the next one.
#[test]
fn the_page_shows_what_is_urgent_first() {
    let (_dir, path) = tokens();
    let (service, browser) = shown(&["--tokens", &path]);
    service.hold("orders%2F1", LONG);
    let waiters = ["ada", "bob"].map(|who| {
        let body = format!(r#"{{"wait_ms": 60000, "ttl_ms": 60000, "holder": "{who}"}}"#);
        let waiter = service.wait_for("orders%2F1", &[], &body);
        browser.sees(&format!("{} !== '–'", cell("orders/1", "waiting")));
        waiter
    });
    browser.sees("document.querySelector('#urgent .many')?.innerText === '2 wait below orders/'");
    browser.click("#urgent .many");
    browser.sees("document.querySelector('#search').value === 'orders/'");
    browser.run("document.activeElement.blur()");
    browser.keys("t");
    browser.sees("document.activeElement.type === 'password'");
    browser.keys(format!("token-of-an-administrator{ENTER}"));
    browser.sees(&row("orders/1"));
    browser.click(".row.body");
    browser.sees("document.querySelector('#detail .danger')");
    browser.keys("f");
    browser.sees("document.querySelector('#release-dialog .next')?.innerText === 'Next in the queue: ada, and 1 behind it.'");
    browser.keys("it hangs");
    browser.click("#release-dialog .danger");
    browser.sees("document.querySelector('#urgent .lost')?.innerText.startsWith('1 loss in 15 min, last: orders/1')");
    drop(waiters);
}

/// H416: a browser has six connections to one service, and a tab that nobody sees keeps none.
#[test]
fn h416_many_tabs_show_the_page() {
    let (service, browser) = shown(&[]);
    for _ in 0..8 {
        browser.tab(&format!("http://localhost:{}/", port(&service)));
        browser.sees("document.querySelector('#live').dataset.state === 'live'");
    }
}

/// An empty page teaches the first command, and what it says works as it stands.
#[test]
fn an_empty_page_has_a_command_that_makes_a_lock() {
    let (_service, browser) = shown(&[]);
    browser.sees("document.querySelector('#empty code')");
    let command = browser.run("return document.querySelector('#empty code').textContent");
    let typed = std::process::Command::new("sh").arg("-c").arg(command.as_str().unwrap()).output();
    let typed = typed.unwrap();
    assert!(typed.status.success(), "{typed:?}");
    browser.sees(&row("hello"));
    browser.click(".row.body");
    browser.sees(
        "document.querySelector('#detail .command code')?.textContent === 'latchwork show hello'",
    );
    // Without the right to the clipboard, it is copied all the same.
    browser.click("#detail .command .copy");
    browser.sees("document.querySelector('#detail .command .copy').innerText === 'Copied'");
}
