// SPDX-License-Identifier: Apache-2.0
//! Target: the database and options of a URL, with the defaults of the workbench, and the URL
//! without secrets.
//!
//! The driver parses URLs. Its messages may repeat parts of them, so those of a URL with a password
//! are never shown.

use std::time::Duration;

use esker_base::{Error, Kind, Result};
use mongodb::options::{Acknowledgment, ClientOptions, ConnectionString, ServerMonitoringMode};

use super::database::runtime;
use super::failure::failed;

const EXPECTED: &str = "expected mongodb://user@host:port/database";

const ENCODE: &str = "percent-encode special characters, for instance %40 for @ and %3F for ?";

/// Time for choosing a server and for making a connection, unless the target states another.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Options whose values are secret. Their names are not case-sensitive.
const SECRET_OPTIONS: [&str; 3] =
    ["authmechanismproperties", "proxypassword", "tlscertificatekeyfilepassword"];

/// A database and how to reach it.
#[derive(Debug)]
pub(super) struct MongoTarget {
    options: ClientOptions,
    database: String,
    name: String,
}

/// A URL in its parts; only their concatenation is a URL.
struct UrlParts<'a> {
    /// `mongodb://` or `mongodb+srv://`.
    scheme: &'a str,
    user: Option<&'a str>,
    password: Option<&'a str>,
    hosts_and_database: &'a str,
    options: Option<&'a str>,
}

impl<'a> UrlParts<'a> {
    /// Takes `url` apart where the driver does.
    fn of(url: &'a str) -> Option<Self> {
        let (scheme, rest) = url.split_at(url.find("://")? + "://".len());
        let (rest, options) = match rest.split_once('?') {
            Some((rest, options)) => (rest, Some(options)),
            None => (rest, None),
        };
        let (login, hosts_and_database) = match rest.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, rest),
        };
        let (user, password) = match login.map(|login| login.split_once(':').ok_or(login)) {
            Some(Ok((user, password))) => (Some(user), Some(password)),
            Some(Err(user)) => (Some(user), None),
            None => (None, None),
        };
        Some(Self { scheme, user, password, hosts_and_database, options })
    }

    fn url(&self, password: Option<&str>, options: Option<&str>) -> String {
        let user = self.user.unwrap_or_default();
        let colon = if password.is_some() { ":" } else { "" };
        let at = if self.user.is_some() { "@" } else { "" };
        let question = if options.is_some() { "?" } else { "" };
        let (password, options) = (password.unwrap_or_default(), options.unwrap_or_default());
        let (scheme, hosts) = (self.scheme, self.hosts_and_database);
        format!("{scheme}{user}{colon}{password}{at}{hosts}{question}{options}")
    }

    /// The URL that finds the same database, without secrets.
    fn public(&self) -> String {
        let is_public = |option: &&str| {
            let name = option.split('=').next().unwrap_or_default().to_ascii_lowercase();
            !SECRET_OPTIONS.contains(&name.as_str())
        };
        let options = self.options.unwrap_or_default().split('&').filter(is_public);
        let options: Vec<&str> = options.filter(|option| !option.is_empty()).collect();
        let options = options.join("&");
        self.url(None, (!options.is_empty()).then_some(&options))
    }

    /// True if the server asks the user for a password.
    fn takes_password(&self) -> bool {
        let mut options = self.options.unwrap_or_default().split('&');
        let mechanism = options.find_map(|option| {
            let (name, value) = option.split_once('=')?;
            name.eq_ignore_ascii_case("authmechanism").then_some(value)
        });
        self.user.is_some_and(|user| !user.is_empty())
            && mechanism.is_none_or(|name| name.starts_with("SCRAM-") || name == "PLAIN")
    }
}

impl MongoTarget {
    /// Parses `url`; `password` is used if `url` has a user and no password.
    pub fn parse(url: &str, password: Option<&str>) -> Result<Self> {
        let wrong = |what: &str| Error::new(Kind::Invalid, format!("not a target: {what}"));
        let parts = UrlParts::of(url).ok_or_else(|| wrong(EXPECTED))?;
        // If a password had a question mark, its rest would be taken for an option, and shown.
        if parts.options.is_some_and(|options| options.contains('@')) {
            return Err(wrong(ENCODE));
        }
        let encoded = password.map(|password| percent_encoded(password.as_bytes()));
        let password = match parts.password {
            None if parts.takes_password() => encoded.as_deref(),
            password => password,
        };
        let name = parts.public();
        let Ok(connection) = ConnectionString::parse(parts.url(password, parts.options)) else {
            return Err(wrong(&explained(&parts)));
        };
        let Some(database) = connection.default_database.clone() else {
            return Err(wrong(&format!("{name} names no database: {EXPECTED}")));
        };
        let options = resolved(connection, &name)?;
        let target = Self { options: with_defaults(options), database, name };
        target.check()?;
        Ok(target)
    }

    /// Fails if the workbench cannot measure what the URL asks for.
    fn check(&self) -> Result<()> {
        let concern = self.options.write_concern.as_ref().and_then(|concern| concern.w.as_ref());
        if concern != Some(&Acknowledgment::Nodes(0)) {
            return Ok(());
        }
        let what = "w=0: the server does not answer such writes, so they have no latency: use w=1";
        Err(Error::new(Kind::Invalid, format!("{}: {what}", self.name)))
    }

    /// The options of each client.
    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// The database.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The URL without secrets.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The reason why the driver refuses a URL.
fn explained(parts: &UrlParts<'_>) -> String {
    let without_user = UrlParts { user: None, password: None, ..*parts };
    // Without the user and secret options there is nothing that the driver must not repeat.
    if let Err(error) = ConnectionString::parse(without_user.public()) {
        return format!("{EXPECTED}: {}", error.kind);
    }
    match ConnectionString::parse(without_user.url(None, parts.options)) {
        Ok(_) => format!("the user or the password is wrong: {ENCODE}"),
        Err(_) => format!("the driver does not take {}", SECRET_OPTIONS.join(" or ")),
    }
}

/// The options of a connection string, with the hosts that a `mongodb+srv` URL stands for.
fn resolved(connection: ConnectionString, name: &str) -> Result<ClientOptions> {
    let resolve = async {
        let parse = ClientOptions::parse(connection);
        tokio::time::timeout(TIMEOUT, async { parse.await }).await
    };
    match runtime()?.block_on(resolve) {
        Ok(options) => options.map_err(|error| failed(error, name)),
        Err(_) => {
            let what =
                format!("{name}: the name servers did not answer in {} s", TIMEOUT.as_secs());
            Err(Error::new(Kind::Unavailable, what))
        }
    }
}

fn with_defaults(mut options: ClientOptions) -> ClientOptions {
    options.app_name.get_or_insert_with(|| "esker workbench".to_owned());
    options.server_selection_timeout.get_or_insert(TIMEOUT);
    options.connect_timeout.get_or_insert(TIMEOUT);
    // A call that fails is counted. Repeating it would hide that in a long latency.
    options.retry_reads.get_or_insert(false);
    options.retry_writes.get_or_insert(false);
    // A rank makes one call at a time.
    options.max_pool_size = Some(1);
    options.min_pool_size = None;
    // The server sends nothing unasked, which a rank that waits for others would leave unread.
    options.server_monitoring_mode.get_or_insert(ServerMonitoringMode::Poll);
    options
}

fn percent_encoded(bytes: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric();
    let encode = |byte: &u8| match is_plain(byte) {
        true => char::from(*byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    bytes.iter().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_without_secrets_and_find_the_same_database() {
        let urls = [
            "mongodb://user:se%2Fcret@host:5433/data",
            "mongodb://user:secret@a,b:2/my%2Ddata?replicaSet=rs&w=majority",
            "mongodb://user:secret@%2Ftmp%2Fmongodb.sock/data?authSource=admin",
            "mongodb://[::1]/data",
            "mongodb://user:p%3Asecret@host/data?authMechanism=PLAIN&authSource=$external",
        ];
        for url in urls {
            let target = MongoTarget::parse(url, Some("oth/er")).expect(url);
            assert!(!target.name().contains("cret") && !target.name().contains("oth"), "{url}");
            let again = MongoTarget::parse(target.name(), Some("oth/er")).expect(url);
            assert_eq!(again.name(), target.name());
            assert_eq!(
                (again.database(), &again.options.hosts),
                (target.database(), &target.options.hosts)
            );
            let login = |target: &MongoTarget| {
                let found = target.options.credential.clone()?;
                Some((found.username, found.source))
            };
            assert_eq!(login(&again), login(&target));
            let password = |target: &MongoTarget| target.options.credential.clone()?.password;
            assert_ne!(password(&target).as_deref(), Some("oth/er"), "the URL's own counts");
            let has_user = again.options.credential.is_some();
            assert_eq!(password(&again).as_deref(), has_user.then_some("oth/er"));
        }
    }

    #[test]
    fn secret_options_are_not_shown() {
        let parts =
            UrlParts::of("mongodb://u:p@host/data?tls=true&AuthMechanismProperties=a:b&w=1");
        assert_eq!(parts.expect("a URL").public(), "mongodb://u@host/data?tls=true&w=1");
        let parts = UrlParts::of("mongodb://host/data?proxyPassword=secret");
        assert_eq!(parts.expect("a URL").public(), "mongodb://host/data");
    }

    #[test]
    fn passwords_are_for_mechanisms_that_take_one() {
        for (url, takes) in [
            ("mongodb://user@host/data", true),
            ("mongodb://user@host/data?AuthMechanism=SCRAM-SHA-256", true),
            ("mongodb://user@host/data?authMechanism=MONGODB-X509", false),
            ("mongodb://host/data", false),
        ] {
            assert_eq!(UrlParts::of(url).expect("a URL").takes_password(), takes, "{url}");
            MongoTarget::parse(url, Some("secret")).expect(url);
        }
    }

    #[test]
    fn times_are_bounded_unless_the_target_states_others() {
        let options = |url: &str| MongoTarget::parse(url, None).expect("a target").options;
        let plain = options("mongodb://host/data?maxPoolSize=7&minPoolSize=2");
        assert_eq!(plain.server_selection_timeout, Some(Duration::from_secs(10)));
        assert_eq!(plain.connect_timeout, Some(Duration::from_secs(10)));
        assert_eq!((plain.max_pool_size, plain.min_pool_size), (Some(1), None));
        assert_eq!((plain.retry_reads, plain.retry_writes), (Some(false), Some(false)));
        let stated =
            "mongodb://host/data?serverSelectionTimeoutMS=7&connectTimeoutMS=8&retryReads=true";
        let stated = options(stated);
        assert_eq!(stated.server_selection_timeout, Some(Duration::from_millis(7)));
        assert_eq!(stated.connect_timeout, Some(Duration::from_millis(8)));
        assert_eq!(stated.retry_reads, Some(true));
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        for (url, said) in [
            ("mongodb://user@host", "names no database"),
            ("mongodb://user@host:port/data", "the port must be"),
            ("mongodb://user:a/b@host/data", "percent-encode"),
            ("mongodb://user:a?b@host/data", "percent-encode"),
            ("mongodb://host/data?proxyPassword=secret", "does not take"),
            ("mongodb://host/data?w=0", "use w=1"),
            ("mongodb:host", "expected mongodb://"),
        ] {
            let refused = MongoTarget::parse(url, None).expect_err(url);
            assert_eq!(refused.kind(), Kind::Invalid, "{refused}");
            assert!(refused.to_string().contains(said), "{refused}");
            assert!(!refused.to_string().contains("secret"), "{refused}");
        }
    }
}
