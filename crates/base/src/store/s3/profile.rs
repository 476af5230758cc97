// SPDX-License-Identifier: Apache-2.0
//! Profile: settings of a server and its user in the files of the AWS command line.
//!
//! ```text
//! ~/.aws/config         [default] and [profile NAME]: region, endpoint_url, roles, also keys
//! ~/.aws/credentials    [default] and [NAME]: keys
//! ```
//! `AWS_PROFILE`, `AWS_CONFIG_FILE` and `AWS_SHARED_CREDENTIALS_FILE` select others. The
//! environment takes precedence over a profile.
//! Source: AWS SDKs and Tools Reference Guide, "Using shared config and credentials files".

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::credential_process::split_words;
use crate::{Error, Kind, Result};

/// Maximum bytes of one of these files.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Settings of key sources that only the AWS command line supports, so it is asked for the keys.
const BY_COMMAND_LINE: &[&str] =
    &["sso_session", "sso_start_url", "source_profile", "credential_source", "login_session"];

type ProfileSettings = BTreeMap<String, String>;

/// Adds to `variables` the settings of the profile that they select, as the equivalent variables.
/// Returns the command that prints the keys, its name and arguments, if the keys come from one.
///
/// # Errors
/// `Invalid` if there is no such profile or its command is invalid; errors of reading the files.
pub(super) fn complete(variables: &mut BTreeMap<String, String>) -> Result<Option<Vec<String>>> {
    let chosen = variables.get("AWS_PROFILE").or_else(|| variables.get("AWS_DEFAULT_PROFILE"));
    let name = chosen.map_or("default", String::as_str).to_owned();
    let home = variables.get("HOME").map(PathBuf::from);
    let path = |variable: &str, leaf: &str| {
        let given = variables.get(variable).map(PathBuf::from);
        given.or_else(|| home.as_ref().map(|home| home.join(".aws").join(leaf)))
    };
    let config = read(path("AWS_CONFIG_FILE", "config"))?;
    let credentials = read(path("AWS_SHARED_CREDENTIALS_FILE", "credentials"))?;
    let of_config = match name.as_str() {
        "default" => section(&config, "default").or_else(|| section(&config, "profile default")),
        name => section(&config, &format!("profile {name}")),
    };
    let of_credentials = section(&credentials, &name);
    if chosen.is_some() && of_config.is_none() && of_credentials.is_none() {
        let what = format!(
            "AWS_PROFILE: profile {name:?} is neither in ~/.aws/config nor in ~/.aws/credentials"
        );
        return Err(Error::new(Kind::Invalid, what));
    }
    let mut profile = of_config.unwrap_or_default();
    profile.extend(of_credentials.unwrap_or_default());
    adopt(&profile, &name, variables)
}

/// Adds the settings of `profile` that the environment lacks; returns the command that prints its
/// keys.
fn adopt(
    profile: &ProfileSettings,
    name: &str,
    variables: &mut BTreeMap<String, String>,
) -> Result<Option<Vec<String>>> {
    let add = |variables: &mut BTreeMap<String, String>, settings: &[(&str, &str)]| {
        for (setting, variable) in settings {
            if let Some(value) = profile.get(*setting) {
                variables.insert((*variable).into(), value.clone());
            }
        }
    };
    if !["AWS_REGION", "AWS_DEFAULT_REGION"].iter().any(|name| variables.contains_key(*name)) {
        add(variables, &[("region", "AWS_REGION")]);
    }
    if !["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"].iter().any(|name| variables.contains_key(*name))
    {
        add(variables, &[("endpoint_url", "AWS_ENDPOINT_URL")]);
    }
    if ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"]
        .iter()
        .any(|name| variables.contains_key(*name))
    {
        return Ok(None);
    }
    add(
        variables,
        &[
            ("aws_access_key_id", "AWS_ACCESS_KEY_ID"),
            ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY"),
            ("aws_session_token", "AWS_SESSION_TOKEN"),
            ("web_identity_token_file", "AWS_WEB_IDENTITY_TOKEN_FILE"),
            ("role_session_name", "AWS_ROLE_SESSION_NAME"),
        ],
    );
    if profile.contains_key("web_identity_token_file") {
        add(variables, &[("role_arn", "AWS_ROLE_ARN")]);
    }
    let has_keys = ["aws_access_key_id", "web_identity_token_file"]
        .iter()
        .any(|key| profile.contains_key(*key));
    if has_keys {
        return Ok(None);
    }
    if let Some(command) = profile.get("credential_process") {
        let words = split_words(command).filter(|words| !words.is_empty());
        let what = format!("credential_process of profile {name:?}: it has an unclosed quote");
        return words.map(Some).ok_or_else(|| Error::new(Kind::Invalid, what));
    }
    let by_command_line = BY_COMMAND_LINE.iter().any(|key| profile.contains_key(*key));
    let export =
        ["aws", "configure", "export-credentials", "--format", "process", "--profile", name];
    Ok(by_command_line.then(|| export.map(str::to_owned).to_vec()))
}

/// Returns the text of the file at `path`; empty if there is none.
fn read(path: Option<PathBuf>) -> Result<String> {
    let Some(path) = path else { return Ok(String::new()) };
    let read = |path: &Path| -> std::io::Result<String> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    match read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        outcome => outcome.map_err(|error| Error::io(error, format!("read {}", path.display()))),
    }
}

/// Returns the settings of the section `wanted` of `text`, if it has one.
fn section(text: &str, wanted: &str) -> Option<ProfileSettings> {
    let mut found: Option<ProfileSettings> = None;
    let mut is_inside = false;
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap_or("").replace(['"', '\''], "");
            is_inside = header.split_whitespace().eq(wanted.split_whitespace());
            if is_inside {
                found.get_or_insert_default();
            }
        } else if is_inside
            && !is_nested
            && let Some((key, value)) = line.split_once('=')
            && let Some(settings) = &mut found
        {
            let value = value.split(" #").next().unwrap_or("").split(" ;").next().unwrap_or("");
            settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "
# A comment.
[default]
region = eu-west-1
s3 =
    endpoint_url = http://nested.is.not.ours
[profile other]
region=eu-north-1 ; said so
endpoint_url = http://127.0.0.1:9000
[profile login]
sso_session = company
[profile printed]
credential_process = keys --for \"a b\"
[profile unended]
credential_process = keys 'a
[profile role]
role_arn = arn:aws:iam::1:role/a
web_identity_token_file = /token
";
    const CREDENTIALS: &str = "
[default]
aws_access_key_id = first
aws_secret_access_key = first secret
[other]
aws_access_key_id = second
aws_secret_access_key = second#secret=
aws_session_token = token
";

    fn completed(given: &[(&str, &str)]) -> Result<BTreeMap<String, String>> {
        completed_with_command(given).map(|(variables, _)| variables)
    }

    fn command_of(given: &[(&str, &str)]) -> Result<Option<Vec<String>>> {
        completed_with_command(given).map(|(_, command)| command)
    }

    type Completed = (BTreeMap<String, String>, Option<Vec<String>>);

    fn completed_with_command(given: &[(&str, &str)]) -> Result<Completed> {
        let directory = tempfile::tempdir().expect("temporary directory");
        std::fs::create_dir(directory.path().join(".aws")).expect("mkdir");
        std::fs::write(directory.path().join(".aws/config"), CONFIG).expect("write");
        std::fs::write(directory.path().join(".aws/credentials"), CREDENTIALS).expect("write");
        let home = directory.path().to_str().expect("UTF-8").to_owned();
        let mut variables = BTreeMap::from([("HOME".to_owned(), home)]);
        variables.extend(given.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        let command = complete(&mut variables)?;
        variables.remove("HOME");
        Ok((variables, command))
    }

    fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn the_default_profile_fills_what_is_not_set() {
        let default = of(&[
            ("AWS_ACCESS_KEY_ID", "first"),
            ("AWS_SECRET_ACCESS_KEY", "first secret"),
            ("AWS_REGION", "eu-west-1"),
        ]);
        assert_eq!(completed(&[]).expect("complete"), default);
        let given = [("AWS_ACCESS_KEY_ID", "a"), ("AWS_DEFAULT_REGION", "b")];
        assert_eq!(completed(&given).expect("complete"), of(&given), "the environment goes first");
    }

    #[test]
    fn a_profile_is_chosen_by_name() {
        let chosen = completed(&[("AWS_PROFILE", "other")]).expect("complete");
        let other = of(&[
            ("AWS_PROFILE", "other"),
            ("AWS_ACCESS_KEY_ID", "second"),
            ("AWS_SECRET_ACCESS_KEY", "second#secret="),
            ("AWS_SESSION_TOKEN", "token"),
            ("AWS_REGION", "eu-north-1"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000"),
        ]);
        assert_eq!(chosen, other);
        let chosen = completed(&[("AWS_PROFILE", "role")]).expect("complete");
        assert_eq!(chosen["AWS_WEB_IDENTITY_TOKEN_FILE"], "/token");
        assert_eq!(chosen["AWS_ROLE_ARN"], "arn:aws:iam::1:role/a");
    }

    #[test]
    fn a_profile_that_cannot_be_used_is_refused() {
        for (profile, word) in [("absent", "~/.aws/config"), ("unended", "credential_process")] {
            let error = completed(&[("AWS_PROFILE", profile)]).expect_err(profile);
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    /// Symptom: profiles with single sign-on, a role from another profile, or a program were
    /// refused.
    /// Cause: only keys, web identities and roles of machines were supported. Fix: a program prints
    /// keys.
    #[test]
    fn keys_come_from_a_program_or_from_the_command_line() {
        let command = |profile: &str| command_of(&[("AWS_PROFILE", profile)]).expect("a profile");
        assert_eq!(command("other"), None);
        assert_eq!(command("printed").expect("a command"), ["keys", "--for", "a b"]);
        let exported = command("login").expect("a command").join(" ");
        assert_eq!(exported, "aws configure export-credentials --format process --profile login");
        let given = [("AWS_PROFILE", "login"), ("AWS_ACCESS_KEY_ID", "a")];
        assert_eq!(command_of(&given).expect("a profile"), None, "the environment goes first");
    }
}
