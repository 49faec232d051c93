//! Puts an address together: its parts, its options, and those of the service that it names.

use latchwork_store::Error;
use latchwork_wire::Sourced;
use latchwork_wire::address::{Parts, usually};

use crate::address::host::Host;
use crate::address::passfile::Passfile;
use crate::address::service;
use crate::address::surroundings::Surroundings;
use crate::config::{Login, NEXT, PostgresConfig, Secret, decode, invalid};

/// Reads an address, and the service file that it may name.
///
/// # Errors
///
/// As for [`PostgresConfig::parse`].
pub(crate) fn parse(url: &str, surroundings: &Surroundings) -> Result<PostgresConfig, Error> {
    let (scheme, rest) =
        url.split_once("://").ok_or_else(|| invalid("store: not a PostgreSQL address"))?;
    if !matches!(scheme, "postgres" | "postgresql") {
        return Err(invalid("store: not a scheme of PostgreSQL"));
    }
    let parts = Parts::read(rest, "database").map_err(|error| usually(error, NEXT))?;
    let Parts { hosts, path, query, .. } = parts;
    for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
        host_of(host, "", false).map_err(|error| parts.blame(error))?;
    }
    let login = parts.login.unwrap_or_default();
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(Secret(decode(password, "password")?))),
        None => (login, None),
    };
    let options = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        Ok((name, decode(value, name)?))
    });
    let options = options.collect::<Result<Vec<_>, Error>>()?;
    let mut reading = Reading::new(surroundings);
    // The address goes before the service, and that before the environment, as for psql.
    for variable in &surroundings.variables {
        let set = reading.set(variable.option, variable.value()?);
        set.map_err(|error| variable.blame(&error))?;
    }
    reading.usual_password = reading.place.login.password.take();
    let service = options.iter().rev().find(|(name, _)| *name == "service");
    let of_environment = || surroundings.service.as_ref()?.to_str();
    if let Some(service) = service.map(|(_, service)| &**service).or_else(of_environment) {
        for line in service::find(service, surroundings)? {
            let set = reading.set(&line.name, line.value.clone());
            set.map_err(|error| line.blame(&error))?;
        }
    }
    reading.password_with_user(decode(user, "user")?, password);
    let database = decode(path, "database")?;
    if !database.is_empty() {
        reading.place.database = database;
    }
    if !hosts.is_empty() {
        (reading.place.hosts, reading.place.is_option) = (hosts.into(), false);
    }
    for (name, value) in options {
        if name != "service" {
            reading.set(name, value)?;
        }
    }
    reading.settle()
}

/// An address that is being read.
struct Reading {
    config: PostgresConfig,
    place: Place,
    /// The certificate is to be checked.
    verifies: bool,
    /// That of the environment.
    usual_password: Option<Secret>,
}

/// Where the database is, as the address and its options say it.
#[derive(Default)]
struct Place {
    hosts: String,
    /// The hosts are those of an option: without escapes and ports.
    is_option: bool,
    ports: String,
    login: Login,
    database: String,
}

impl Reading {
    fn new(surroundings: &Surroundings) -> Self {
        let mut config = PostgresConfig::usual();
        let passfile = surroundings.passfile();
        config.passfile = passfile.map(|path| Passfile { path, is_named: false });
        Self { config, place: Place::default(), verifies: false, usual_password: None }
    }

    fn password_with_user(&mut self, user: String, password: Option<Secret>) {
        if !user.is_empty() || password.is_some() {
            self.place.login.user = user;
        }
        self.place.login.password = password.or(self.place.login.password.take());
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), Error> {
        match name {
            "host" => (self.place.hosts, self.place.is_option) = (value, true),
            "port" => self.place.ports = value,
            "user" => self.place.login.user = value,
            "dbname" => self.place.database = value,
            "password" => self.place.login.password = Some(Secret(value)),
            "passfile" => {
                self.config.passfile = Some(Passfile { path: value.into(), is_named: true });
            }
            _ => return self.config.set(name, value, &mut self.verifies),
        }
        Ok(())
    }

    fn settle(self) -> Result<PostgresConfig, Error> {
        let Self { mut config, mut place, verifies, usual_password } = self;
        let login = &place.login;
        if login.user.is_empty() && login.password.is_some() {
            return Err(invalid("store: a password without a user"));
        }
        // A file that the address names goes before the environment.
        if config.passfile.as_ref().is_none_or(|file| !file.is_named) {
            place.login.password = place.login.password.or(usual_password);
        }
        let ports: Vec<&str> = place.ports.split(',').collect();
        let hosts: Vec<&str> = place.hosts.split(',').collect();
        if ports.len() > 1 && ports.len() != hosts.len() {
            return Err(invalid("store: port has not as many numbers as there are hosts"));
        }
        for (n, host) in hosts.iter().enumerate() {
            let port = ports.get(n).or_else(|| ports.first()).copied().unwrap_or_default();
            config.hosts.push(host_of(host, port, place.is_option)?);
        }
        if place.login.user.is_empty() {
            place.login.user = usual_user(&config.hosts)?;
        }
        config.database = match &*place.database {
            "" => place.login.user.clone(),
            database => database.to_owned(),
        };
        config.login = Sourced::fixed(place.login);
        config.check(verifies)?;
        Ok(config)
    }
}

/// Who logs in if the address names nobody.
fn usual_user(hosts: &[Host]) -> Result<String, Error> {
    if !hosts.iter().all(Host::is_socket) {
        return Ok("postgres".into());
    }
    // That is who the server sees at the other end of the socket (`peer`).
    whoami::username().map_err(|error| {
        invalid(format!("store: user: this process runs as a user without a name: {error}"))
            .with_next_step("name one: postgres://user@%2Frun%2Fpostgresql/database")
    })
}

fn host_of(text: &str, port: &str, is_option: bool) -> Result<Host, Error> {
    if text.starts_with('@') {
        return Err(invalid("store: host is a socket without a file, which cannot be used")
            .with_next_step("let the server make one in a folder: unix_socket_directories"));
    }
    let usual = match port {
        "" => 5_432,
        port => match port.parse() {
            Ok(port @ 1..) => port,
            _ => return Err(invalid("store: port is not a number from 1 to 65535")),
        },
    };
    Host::parse(text, usual, is_option).map_err(|error| usually(error, NEXT))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SslMode;

    /// H281: as psql does, and the address goes before the environment.
    #[test]
    fn h281_options_that_an_address_leaves_out_are_the_environments() {
        let folder = latchwork_services::Folder::new().unwrap();
        let file = folder.path().join("services");
        std::fs::write(&file, "[shop]\nhost=h9\nuser=service\n").unwrap();
        let around = Surroundings { services: Some(file), ..Surroundings::default() }.with(&[
            ("PGHOST", "h1,::1"),
            ("PGPORT", "7"),
            ("PGDATABASE", "shop"),
            ("PGUSER", "app"),
            ("PGPASSWORD", "p%w"),
            ("PGSSLMODE", "require"),
            ("PGSSLROOTCERT", "/ca"),
            ("PGAPPNAME", "till"),
        ]);
        let read = |url: &str| parse(url, &around).unwrap();
        let all = read("postgres://");
        assert_eq!(all.shown(), "postgres://h1:7,[::1]:7/shop");
        let login = all.login.current().0;
        assert_eq!((&*login.user, login.password), ("app", Some(Secret("p%w".into()))));
        assert_eq!((all.ssl_mode, all.tls.insecure), (SslMode::Require, false));
        assert_eq!((all.tls.ca, &*all.application_name), (Some("/ca".into()), "till"));
        let own = read("postgres://me:x@h3:9/other?sslmode=disable&application_name=y");
        let login = own.login.current().0;
        assert_eq!((own.shown(), &*login.user), ("postgres://h3:9/other".into(), "me"));
        assert_eq!((login.password, own.ssl_mode), (Some(Secret("x".into())), SslMode::Disable));
        let service = read("postgres:///?service=shop&passfile=/p");
        let login = service.login.current().0;
        assert_eq!((service.shown(), &*login.user), ("postgres://h9:7/shop".into(), "service"));
        assert_eq!(login.password, None, "a file that is named goes before PGPASSWORD");
        let named = Surroundings { service: Some("shop".into()), ..around.clone() };
        assert_eq!(parse("postgres://", &named).unwrap().shown(), "postgres://h9:7/shop");
        let wrong = Surroundings::default().with(&[("PGSSLMODE", "maybe")]);
        let error = parse("postgres://h", &wrong).unwrap_err().to_string();
        assert!(error.starts_with("store: PGSSLMODE: sslmode is not disable"), "{error}");
        assert!(error.contains("unset PGSSLMODE for this process, or write sslmode"), "{error}");
        assert!(error.ends_with("= in the address, which goes before it"), "{error}");
        assert!(!format!("{around:?}").contains("p%w"));
    }

    #[test]
    fn the_address_goes_before_its_service() {
        let folder = latchwork_services::Folder::new().unwrap();
        let file = folder.path().join("services");
        let text = "[shop]\nhost=h1,h2\nport=7,8\nuser=app\npassword=p%w\ndbname=shop\nsslmode=require\n\
                    [typo]\nhost=h\n\nport=x\nsslmode=maybe\n";
        std::fs::write(&file, text).unwrap();
        let around = Surroundings { services: Some(file.clone()), ..Surroundings::default() };
        let read = |url: &str| parse(url, &around);
        let all = read("postgres://?service=shop").unwrap();
        assert_eq!(all.shown(), "postgres://h1:7,h2:8/shop");
        let login = all.login.current().0;
        assert_eq!((&*login.user, login.password), ("app", Some(Secret("p%w".into()))));
        let other = read("postgres://me:x@h3:9/?service=shop&sslmode=disable&port=9").unwrap();
        let login = other.login.current().0;
        assert_eq!((other.shown(), &*login.user), ("postgres://h3:9/shop".into(), "me"));
        assert_eq!((other.ssl_mode, login.password), (SslMode::Disable, Some(Secret("x".into()))));
        let error = read("postgres:///?service=typo").unwrap_err();
        let place = format!("{}, line 12: sslmode is not disable", file.display());
        assert!(error.to_string().contains(&place), "{error}");
        let error = read("postgres:///?service=none").unwrap_err();
        assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
        let gone = Surroundings { services: Some("/nowhere".into()), ..Surroundings::default() };
        let error = parse("postgres://?service=shop", &gone).unwrap_err();
        assert!(error.to_string().contains("/nowhere cannot be read"), "{error}");
        assert!(
            error.next_step().unwrap().contains("name a file that this process may read"),
            "{error}"
        );
    }
}
