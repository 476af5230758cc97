// SPDX-License-Identifier: Apache-2.0
//! URL password: texts for all to read, such as command lines in manifests, without the passwords of
//! URLs in them.

/// Returns `text` without the password of the URL in it, and without options of the URL that have
/// one. Cuts too much rather than too little: all between a user and the last `@`.
#[must_use]
pub fn without_password(text: &str) -> String {
    let Some(scheme_end) = text.find("://") else { return text.to_owned() };
    let (scheme, rest) = text.split_at(scheme_end + "://".len());
    let (user, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (login.split(':').next().unwrap_or_default(), rest),
        None => ("", rest),
    };
    let at = if user.is_empty() { "" } else { "@" };
    let (place, options) = rest.split_once('?').unwrap_or((rest, ""));
    let is_public = |option: &&str| {
        let name = option.split('=').next().unwrap_or_default().to_ascii_lowercase();
        !option.is_empty() && !name.contains("pass") && name != "authmechanismproperties"
    };
    let options: Vec<&str> = options.split('&').filter(is_public).collect();
    let question = if options.is_empty() { "" } else { "?" };
    format!("{scheme}{user}{at}{place}{question}{}", options.join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_left_out() {
        for (text, shown) in [
            ("put", "put"),
            ("re=redis+unix:///run/s?db=0&pass=secret&x=1", "re=redis+unix:///run/s?db=0&x=1"),
            ("redis://user:sec/ret@host:1/2", "redis://user@host:1/2"),
            ("redis://:secret@host/2", "redis://host/2"),
            ("postgresql://user:se:cret@host/db?sslpassword=secret", "postgresql://user@host/db"),
            ("mongodb://user:se?cret@host/data?w=1", "mongodb://user@host/data?w=1"),
            ("mongodb://user:se@cret@host/data", "mongodb://user@host/data"),
            ("mongodb+srv://host/data?w=1", "mongodb+srv://host/data?w=1"),
            ("s3://bucket/a@b?x", "s3://bucket/a@b?x"),
        ] {
            assert_eq!(without_password(text), shown);
        }
    }
}
