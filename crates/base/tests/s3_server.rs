// SPDX-License-Identifier: Apache-2.0
//! S3 server: a real server on a free port of the loopback interface, with credentials and data of
//! its own.
//!
//! `scripts/install-s3-server.sh` installs it. If it is missing, tests of S3 print that and pass,
//! unless `ESKER_REQUIRE_S3` is set.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use esker_base::Random;
use esker_base::store::S3Store;

const BUCKET: &str = "bucket";

/// A running server; stopped when dropped.
pub struct S3Server {
    process: Child,
    address: String,
    access: String,
    secret: String,
    data: tempfile::TempDir,
}

impl S3Server {
    /// Starts a server, or prints why it cannot.
    pub fn start() -> Option<Self> {
        let Some(program) = find_program() else {
            let what = "versitygw is missing: run scripts/install-s3-server.sh";
            assert!(std::env::var_os("ESKER_REQUIRE_S3").is_none(), "{what}");
            println!("skipped: {what}");
            return None;
        };
        let data = tempfile::tempdir().expect("temporary directory");
        for directory in ["data/bucket", "metadata"] {
            std::fs::create_dir_all(data.path().join(directory)).expect("mkdir");
        }
        let mut random = Random::from_system();
        let (access, secret) = (format!("{:x}", random.u128()), format!("{:x}", random.u128()));
        for _ in 0..10 {
            let address = free_address();
            let mut process = Command::new(&program)
                .args(["--quiet", "--keep-alive", "--port", &address])
                .arg("posix")
                .arg(data.path().join("data"))
                .env("ROOT_ACCESS_KEY_ID", &access)
                .env("ROOT_SECRET_ACCESS_KEY", &secret)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("start the server");
            if answers(&mut process, &address) {
                return Some(Self { process, address, access, secret, data });
            }
            // Another process took the port meanwhile.
            process.kill().expect("stop the server");
            process.wait().expect("stop the server");
        }
        panic!("{} does not answer", program.display());
    }

    /// The server's address.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The directory that holds the bucket's objects.
    pub fn bucket_path(&self) -> PathBuf {
        self.data.path().join("data").join(BUCKET)
    }

    /// Returns the environment of a client that reaches the server at `address`.
    pub fn variables(&self, address: &str) -> Vec<(String, String)> {
        [
            ("AWS_ENDPOINT_URL", format!("http://{address}")),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", self.access.clone()),
            ("AWS_SECRET_ACCESS_KEY", self.secret.clone()),
        ]
        .map(|(key, value)| (key.into(), value))
        .into()
    }

    /// Returns a store below `prefix` of the bucket.
    pub fn store(&self, prefix: &str) -> S3Store {
        self.store_by(&self.address, prefix)
    }

    /// Returns such a store, reached at `address`.
    pub fn store_by(&self, address: &str, prefix: &str) -> S3Store {
        S3Store::with_variables(BUCKET, prefix, self.variables(address)).expect("a store")
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.process.kill().expect("stop the server");
        self.process.wait().expect("stop the server");
    }
}

fn find_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let home = std::env::var_os("HOME").unwrap_or_default();
    let go = ["GOBIN", "GOPATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let go: Vec<PathBuf> = go.flat_map(|path| [path.join("bin"), path]).collect();
    std::env::split_paths(&path)
        .chain(go)
        .chain([Path::new(&home).join("go/bin")])
        .map(|directory| directory.join("versitygw"))
        .find(|program| program.is_file())
}

pub fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").to_string()
}

fn answers(process: &mut Child, address: &str) -> bool {
    for _ in 0..500 {
        if process.try_wait().expect("the server's state").is_some() {
            return false;
        }
        if TcpStream::connect(address).is_ok() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}
