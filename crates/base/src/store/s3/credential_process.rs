// SPDX-License-Identifier: Apache-2.0
//! Credential process: keys printed by a program, as the AWS command line takes them from a
//! profile's `credential_process`. For methods that only that command line supports (single
//! sign-on, roles that follow from other profiles), the program is the command line itself.
//!
//! ```text
//! {"Version":1,"AccessKeyId":"…","SecretAccessKey":"…","SessionToken":"…"}
//! ```
//! The program runs when keys are first needed and again once they are [`KEPT`] old; programs that
//! ask a remote server cache keys themselves. Only one runs at a time: a request that times out
//! while the program hangs leaves it running, and the next request waits for the same one. The size
//! of its output is bounded; its errors go to the user.
//! Source: AWS SDKs and Tools Reference Guide, "Process credential provider".

use std::collections::BTreeMap;
use std::io::Read;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Error as S3Error, Result as S3Result};
use parking_lot::Mutex;
use serde::Deserialize;

use crate::clock::{Clock, SystemClock};

/// Age at which keys are fetched anew: temporary keys live for at least a quarter of an hour.
const KEPT: Duration = Duration::from_secs(300);
/// Maximum bytes of a program's output.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Start of the error of a program that gives no keys.
pub(super) const NO_KEYS: &str = "no keys from ";

/// Keys from a program.
#[derive(Debug)]
pub(super) struct ProcessCredentials {
    program: Arc<CredentialProgram>,
}

#[derive(Debug)]
struct CredentialProgram {
    /// The name of the program and its arguments.
    words: Vec<String>,
    /// Environment variables on top of this process's own.
    variables: BTreeMap<String, String>,
    /// The last keys, and the monotonic time at which they were taken. Locked while the program
    /// runs.
    kept: Mutex<Option<(u64, Arc<AwsCredential>)>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CredentialAnswer {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

impl ProcessCredentials {
    /// Makes a source of keys from the program `words`, its name and arguments, run with
    /// `variables` besides this process's own.
    pub(super) fn new(words: Vec<String>, variables: BTreeMap<String, String>) -> Self {
        Self { program: Arc::new(CredentialProgram { words, variables, kept: Mutex::default() }) }
    }
}

impl CredentialProvider for ProcessCredentials {
    type Credential = AwsCredential;

    fn get_credential<'a, 'b>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = S3Result<Arc<AwsCredential>>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let program = self.program.clone();
        Box::pin(async move {
            let name = program.words.first().cloned().unwrap_or_default();
            let keys = tokio::task::spawn_blocking(move || program.keys()).await;
            let keys = keys.unwrap_or_else(|error| Err(error.to_string()));
            keys.map_err(|what| S3Error::Generic {
                store: "S3",
                source: format!("{NO_KEYS}`{name}`: {what}").into(),
            })
        })
    }
}

impl CredentialProgram {
    fn keys(&self) -> Result<Arc<AwsCredential>, String> {
        let mut kept = self.kept.lock();
        let now_ns = SystemClock.monotonic_ns();
        if let Some((taken_ns, keys)) = &*kept
            && u128::from(now_ns.saturating_sub(*taken_ns)) < KEPT.as_nanos()
        {
            return Ok(keys.clone());
        }
        let keys = Arc::new(self.run()?);
        *kept = Some((now_ns, keys.clone()));
        Ok(keys)
    }

    fn run(&self) -> Result<AwsCredential, String> {
        let (name, arguments) = self.words.split_first().ok_or("the command is empty")?;
        let mut child = Command::new(name)
            .args(arguments)
            .envs(&self.variables)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut printed = Vec::new();
        let output = child.stdout.take().expect("piped");
        let read = output.take(ANSWER_BYTES_MAX).read_to_end(&mut printed);
        let status = child.wait().map_err(|error| error.to_string())?;
        read.map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("{status}"));
        }
        parse(&printed)
    }
}

/// Parses the keys in `printed`. The error does not quote any of it.
fn parse(printed: &[u8]) -> Result<AwsCredential, String> {
    let answer: CredentialAnswer = serde_json::from_slice(printed).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("line {line}, column {column}: expected JSON with AccessKeyId and SecretAccessKey")
    })?;
    if answer.version != 1 {
        return Err(format!("expected Version 1, got {}", answer.version));
    }
    Ok(AwsCredential {
        key_id: answer.access_key_id,
        secret_key: answer.secret_access_key,
        token: answer.session_token,
    })
}

/// Splits a command into words as a shell does: at blanks outside of quotes. Returns `None` if a
/// quote is not closed.
pub(super) fn split_words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(end), letter) if letter == end => quote = None,
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None | Some('"'), '\\') => word.get_or_insert_default().push(letters.next()?),
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys_of(script: &str) -> Result<Arc<AwsCredential>, String> {
        let words = ["sh", "-c", script].map(str::to_owned).to_vec();
        let variables = [("TOKEN".to_owned(), "token".to_owned())].into();
        ProcessCredentials::new(words, variables).program.keys()
    }

    #[test]
    fn a_program_prints_keys() {
        let printed = r#"echo "{\"Version\":1,\"AccessKeyId\":\"a\",\"SecretAccessKey\":\"b\",\"SessionToken\":\"$TOKEN\"}""#;
        let keys = keys_of(printed).expect("keys");
        assert_eq!((&*keys.key_id, &*keys.secret_key), ("a", "b"));
        assert_eq!(keys.token.as_deref(), Some("token"));
    }

    #[test]
    fn what_gives_no_keys_says_why_and_no_secret() {
        for (script, word) in [
            ("exit 3", "3"),
            ("echo nothing", "AccessKeyId"),
            (r#"echo '{"Version":2,"AccessKeyId":"a","SecretAccessKey":"secret"}'"#, "Version 1"),
            (r#"echo '{"Version":1,"SecretAccessKey":"secret"}'"#, "AccessKeyId"),
        ] {
            let why = keys_of(script).expect_err(script);
            assert!(why.contains(word) && !why.contains("secret"), "{script}: {why}");
        }
        let absent = ProcessCredentials::new(vec!["/absent/program".into()], BTreeMap::new());
        absent.program.keys().expect_err("no such program");
        ProcessCredentials::new(Vec::new(), BTreeMap::new()).program.keys().expect_err("no words");
    }

    #[test]
    fn keys_are_kept_for_a_while() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let runs = directory.path().join("runs");
        let script = format!(
            r#"echo >> {}; echo '{{"Version":1,"AccessKeyId":"a","SecretAccessKey":"b"}}'"#,
            runs.display()
        );
        let words = vec!["sh".to_owned(), "-c".to_owned(), script];
        let keys = ProcessCredentials::new(words, BTreeMap::new());
        (0..3).for_each(|_| drop(keys.program.keys().expect("keys")));
        assert_eq!(std::fs::read(runs).expect("it ran").len(), 1);
    }

    #[test]
    fn words_are_split_as_a_shell_does() {
        let split = |text: &str| split_words(text).map(|words| words.join("|"));
        assert_eq!(split("  a b\tc "), Some("a|b|c".into()));
        assert_eq!(split(r#"a "b c" 'd "e' f\ g "h\"i" """#), Some("a|b c|d \"e|f g|h\"i|".into()));
        assert_eq!(split("a 'b"), None);
        assert_eq!(split("a\\"), None);
    }
}
