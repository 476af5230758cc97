// SPDX-License-Identifier: Apache-2.0
//! Sources of the keys of an S3 store: local programs and servers that hand out the keys of a real
//! server, and the fate of requests when these hang.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use esker_base::clock::{Clock, SystemClock};
use esker_base::store::{S3Store, Store};
use esker_base::{Error, Kind};

use super::s3_server::S3Server;

/// Limits where a server hangs: for a request, and for the whole call.
const TIMEOUT: &str = "600ms";
const GIVEN_UP_NS: u64 = 20_000_000_000;

type Variables = BTreeMap<String, String>;

/// Returns the server's address and region without keys, and the keys.
fn split(server: &S3Server) -> (Variables, String, String) {
    let mut variables: Variables = server.variables(server.address()).into_iter().collect();
    let mut take = |name: &str| variables.remove(name).expect("a server has keys");
    let keys = (take("AWS_ACCESS_KEY_ID"), take("AWS_SECRET_ACCESS_KEY"));
    (variables, keys.0, keys.1)
}

fn store(variables: Variables, more: &[(&str, &str)]) -> S3Store {
    let more = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    S3Store::with_variables("bucket", "", variables.into_iter().chain(more)).expect("a store")
}

/// Starts a local server that answers requests by the first of `answers` whose suffix matches the
/// path; returns its address.
fn serve(answers: Vec<(&'static str, String)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(client.try_clone().expect("a handle")).lines();
            let lines: Vec<String> =
                lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let path = lines.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
            let found = answers.iter().find(|(end, _)| path.ends_with(end));
            let (status, body) = found.map_or(("404 Not Found", ""), |(_, body)| ("200 OK", body));
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n");
            // A client that is gone needs no answer.
            drop(write!(client, "{head}connection: close\r\n\r\n{body}"));
        }
    });
    address
}

/// Starts a local server that accepts connections and never answers.
fn hang() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    (listener, address)
}

fn temporary_keys(access: &str, secret: &str) -> String {
    format!(
        r#"{{"Code":"Success","AccessKeyId":"{access}","SecretAccessKey":"{secret}","Token":"",
            "RoleArn":"a","Expiration":"2999-01-01T00:00:00Z"}}"#
    )
}

#[test]
fn a_role_of_the_instance_has_keys() {
    let Some(server) = S3Server::start() else { return };
    let (variables, access, secret) = split(&server);
    let metadata = serve(vec![
        ("/latest/api/token", "a token".into()),
        ("/iam/security-credentials/", "a-role".into()),
        ("/iam/security-credentials/a-role", temporary_keys(&access, &secret)),
    ]);
    // The name that the AWS command line uses.
    let endpoint = format!("http://{metadata}");
    let store = store(variables, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &endpoint)]);
    asserts_denied_only_for_its_token(store.put_if_absent("a", b"x"));
}

#[test]
fn a_role_of_the_container_has_keys() {
    let Some(server) = S3Server::start() else { return };
    let (variables, access, secret) = split(&server);
    let address = serve(vec![("/role", temporary_keys(&access, &secret))]);
    let directory = tempfile::tempdir().expect("temporary directory");
    let token = directory.path().join("token");
    std::fs::write(&token, "a token").expect("write");
    let store = store(
        variables,
        &[
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("http://{address}/role")),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.to_str().expect("UTF-8")),
        ],
    );
    asserts_denied_only_for_its_token(store.put_if_absent("a", b"x"));
}

/// Keys of roles come with a session token, which the server of these tests may refuse as not its
/// own.
fn asserts_denied_only_for_its_token(put: Result<(), Error>) {
    if let Err(error) = put {
        assert_eq!(error.kind(), Kind::Denied, "{error}");
        assert!(error.to_string().to_lowercase().contains("token"), "{error}");
    }
}

/// Puts an object with the keys of `profile` from a configuration file with `text`.
fn put_by_profile(server: &S3Server, text: &str) -> Result<(), Error> {
    let (variables, ..) = split(server);
    let directory = tempfile::tempdir().expect("temporary directory");
    let config = directory.path().join("config");
    std::fs::write(&config, format!("[profile lab]\n{text}\n")).expect("write");
    let config = config.to_str().expect("UTF-8");
    let absent = directory.path().join("absent");
    let more = [
        ("AWS_PROFILE", "lab"),
        ("AWS_CONFIG_FILE", config),
        ("AWS_SHARED_CREDENTIALS_FILE", absent.to_str().expect("UTF-8")),
    ];
    store(variables, &more).put_if_absent("a", b"x")
}

#[test]
fn a_program_has_keys() {
    let Some(server) = S3Server::start() else { return };
    let (_, access, secret) = split(&server);
    let directory = tempfile::tempdir().expect("temporary directory");
    let answer = directory.path().join("the answer");
    let text = format!(r#"{{"Version":1,"AccessKeyId":"{access}","SecretAccessKey":"{secret}"}}"#);
    std::fs::write(&answer, text).expect("write");
    let process = format!("credential_process = cat \"{}\"", answer.display());
    put_by_profile(&server, &process).expect("put");
    let error = put_by_profile(&server, "credential_process = false").expect_err("no keys");
    assert_eq!(error.kind(), Kind::Denied, "{error}");
    assert!(error.to_string().contains("no keys from `false`"), "{error}");
}

/// A server that accepts a connection and never answers is given up within the time for a request,
/// even while that only waits for keys: of a web identity, of an instance, of a program.
#[test]
fn who_hands_out_no_keys_is_given_up() {
    let Some(server) = S3Server::start() else { return };
    let (variables, ..) = split(&server);
    let (_listener, address) = hang();
    let directory = tempfile::tempdir().expect("temporary directory");
    let (token, config) = (directory.path().join("token"), directory.path().join("config"));
    std::fs::write(&token, "a token").expect("write");
    std::fs::write(&config, "[profile lab]\ncredential_process = sleep 5\n").expect("write");
    let (plain, secure) = (format!("http://{address}"), format!("https://{address}"));
    let token = token.to_str().expect("UTF-8");
    for more in [
        &[
            ("AWS_WEB_IDENTITY_TOKEN_FILE", token),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/a"),
            ("AWS_ENDPOINT_URL_STS", &secure),
        ][..],
        &[("AWS_METADATA_ENDPOINT", &plain)],
        &[("AWS_PROFILE", "lab"), ("AWS_CONFIG_FILE", config.to_str().expect("UTF-8"))],
        &[("AWS_ENDPOINT_URL", &plain), ("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")],
    ] {
        let timeout = [("AWS_TIMEOUT", TIMEOUT)];
        let start_ns = SystemClock.monotonic_ns();
        let store = store(variables.clone(), &[more, &timeout].concat());
        let error = store.put_if_absent("a", b"x").expect_err("nobody answers");
        assert!(SystemClock.monotonic_ns() - start_ns < GIVEN_UP_NS, "{more:?}: {error}");
        assert_ne!(error.kind(), Kind::NotFound, "{more:?}: {error}");
    }
}

/// Set for the process that puts an object with the keys of its environment.
const PUTS: &str = "ESKER_TEST_PUTS";

/// A server of roles, which answers one request over TLS.
struct RoleServer {
    process: std::process::Child,
    directory: tempfile::TempDir,
    address: String,
}

impl RoleServer {
    /// Starts it, with a certificate for the loopback interface from an authority of its own.
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let run = |arguments: &str| {
            let mut command = std::process::Command::new("openssl");
            command.current_dir(directory.path()).args(arguments.split(' '));
            let made = command.output().expect("openssl; every Debian with CA certificates has it");
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        run(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 9 -subj /CN=authority"));
        run(&format!(
            "req -x509 {key} -keyout key.pem -out cert.pem -days 9 -subj /CN=roles -CA ca.pem -CAkey \
             ca.key -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE"
        ));
        let address = super::s3_server::free_address();
        let process = std::process::Command::new("openssl")
            .current_dir(directory.path())
            .args(["s_server", "-quiet", "-naccept", "1", "-cert", "cert.pem", "-key", "key.pem"])
            .args(["-accept", &address])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("openssl");
        Self { process, directory, address }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    /// Starts a thread that answers the request with `body`, and returns the request's first line,
    /// or nothing if the server ends before one comes.
    fn answer(&mut self, body: String) -> std::thread::JoinHandle<String> {
        let said = BufReader::new(self.process.stdout.take().expect("it was piped"));
        let mut stdin = self.process.stdin.take().expect("it was piped");
        std::thread::spawn(move || {
            let lines = said.lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let length = body.len();
            // A client that is gone needs no answer.
            drop(write!(stdin, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"));
            head.first().cloned().unwrap_or_default()
        })
    }
}

impl Drop for RoleServer {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Web identity: a service that runs jobs gives each a token, for which a server of roles hands out
/// keys. It is asked over TLS only, and a process trusts the authorities with which it starts, so
/// another process puts the object.
#[test]
fn a_web_identity_has_keys() {
    let Some(server) = S3Server::start() else { return };
    // The second is a token of another server.
    for token in ["", "unknown"] {
        puts_with_a_web_identity(&server, token);
    }
}

fn puts_with_a_web_identity(server: &S3Server, session_token: &str) {
    let (variables, access, secret) = split(server);
    let mut roles = RoleServer::start();
    std::fs::write(roles.path("token"), "a-web-token").expect("write");
    let token = roles.path("token");
    let profile = format!(
        "[profile lab]\nweb_identity_token_file = {token}\nrole_arn = arn:aws:iam::1:role/lab\n"
    );
    std::fs::write(roles.path("config"), profile).expect("write");
    let mut process = std::process::Command::new(std::env::current_exe().expect("this test"));
    let process = process
        .args(["s3_keys::an_object_is_put_with_the_keys_of_the_environment", "--exact"])
        .env_clear()
        .envs(variables)
        .envs([
            (PUTS, session_token),
            ("AWS_PROFILE", "lab"),
            ("AWS_CONFIG_FILE", &roles.path("config")),
        ])
        .env("AWS_SHARED_CREDENTIALS_FILE", roles.path("absent"))
        .env("AWS_ENDPOINT_URL_STS", format!("https://{}", roles.address))
        .env("SSL_CERT_FILE", roles.path("ca.pem"))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("this test");
    let keys = format!(
        "<AccessKeyId>{access}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>\
         <SessionToken>{session_token}</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration>"
    );
    let asked = roles.answer(format!(
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>{keys}\
         </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    ));
    let output = process.wait_with_output().expect("it ends");
    drop(roles);
    let asked = asked.join().expect("no panic");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(asked.contains("Action=AssumeRoleWithWebIdentity"), "{asked}");
    assert!(asked.contains("WebIdentityToken=a-web-token"), "{asked}");
}

/// The other process of [`a_web_identity_has_keys`].
#[test]
fn an_object_is_put_with_the_keys_of_the_environment() {
    let Some(token) = std::env::var_os(PUTS) else { return };
    let store = S3Store::from_env("bucket", "").expect("a store");
    match (store.put_if_absent("a", b"x"), token.is_empty()) {
        // A server that knows no sessions accepts keys without a token.
        (Ok(()), true) => {}
        (put, _) => {
            let error = put.expect_err("the server gave out no such token");
            assert_eq!(error.kind(), Kind::Denied, "{error}");
            assert!(error.to_string().contains("InvalidToken"), "{error}");
        }
    }
}
