// SPDX-License-Identifier: Apache-2.0
//! Service: the server's version, and the settings that decide how durable its answers are.
//!
//! A write concern that the URL does not state is the deployment's default, or else `w=1`. Users
//! without the right to ask for a setting see `unstated`.

use mongodb::bson::{Bson, Document, doc, serialize_to_document};
use mongodb::error::{Error, ErrorKind, Result};
use mongodb::options::{
    Acknowledgment, ClientOptions, ReadPreference, SelectionCriteria, WriteConcern,
};

use super::database::MongoDatabase;

const UNSTATED: &str = "unstated";

/// Unauthorized, in the server's error codes.
const UNAUTHORIZED: i32 = 13;

/// The version and settings that the server states, in one line.
pub(super) fn describe(database: &MongoDatabase, options: &ClientOptions) -> Result<String> {
    let ask = |command: Document| database.wait(database.run_as_admin(command));
    let build = ask(doc! { "buildInfo": 1 })?;
    let version = build.get_str("version").unwrap_or(UNSTATED);
    let deployment = match stated(ask(doc! { "hello": 1 }))? {
        Stated::Answer(hello) => deployment(&hello),
        // The name of the command in the first releases of version 4.4.
        _ => deployment(&ask(doc! { "isMaster": 1 })?),
    };
    let defaults = stated(ask(doc! { "getDefaultRWConcern": 1 }))?;
    let status = stated(ask(doc! { "serverStatus": 1 }))?;
    let engine = match &status {
        Stated::Answer(status) => {
            let engine =
                status.get_document("storageEngine").and_then(|found| found.get_str("name"));
            engine.unwrap_or(UNSTATED).to_owned()
        }
        _ => UNSTATED.to_owned(),
    };
    let arguments = stated(ask(doc! { "getCmdLineOpts": 1 }))?;
    let write = write_concern(options.write_concern.as_ref(), &defaults);
    let read = read_concern(options, &defaults);
    let journal = journal(&arguments);
    Ok(format!(
        "MongoDB {version}; deployment={deployment} storage_engine={engine} journal={journal} {write} \
         {read}"
    ))
}

/// An answer to a question that a server need not answer.
enum Stated {
    Answer(Document),
    /// The server does not know the command, or not in its deployment.
    Unsupported,
    Denied,
}

fn stated(answer: Result<Document>) -> Result<Stated> {
    match answer {
        Ok(answer) => Ok(Stated::Answer(answer)),
        Err(error) => match code_of(&error) {
            Some(UNAUTHORIZED) => Ok(Stated::Denied),
            Some(_) => Ok(Stated::Unsupported),
            None => Err(error),
        },
    }
}

fn code_of(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

fn deployment(hello: &Document) -> String {
    match (hello.get_str("setName"), hello.get_str("msg")) {
        (Ok(name), _) => format!("replica-set:{name}"),
        (_, Ok("isdbgrid")) => "sharded".to_owned(),
        _ => "standalone".to_owned(),
    }
}

/// The server's setting of its journal: on, off, or `default` if it has none.
fn journal(arguments: &Stated) -> &'static str {
    let Stated::Answer(arguments) = arguments else { return UNSTATED };
    let path = ["parsed", "storage", "journal"];
    let found = path.iter().try_fold(arguments, |document, name| document.get_document(*name));
    match found.and_then(|journal| journal.get_bool("enabled")) {
        Ok(true) => "on",
        Ok(false) => "off",
        Err(_) => "default",
    }
}

/// The write concern in force: `w`, and `j` if the URL or the deployment states it.
fn write_concern(given: Option<&WriteConcern>, defaults: &Stated) -> String {
    let default = match defaults {
        Stated::Answer(defaults) => defaults.get_document("defaultWriteConcern").ok(),
        _ => None,
    };
    let w = match (given, given.and_then(|given| given.w.as_ref()), default) {
        (_, Some(Acknowledgment::Nodes(nodes)), _) => nodes.to_string(),
        (_, Some(Acknowledgment::Majority), _) => "majority".to_owned(),
        (_, Some(Acknowledgment::Custom(tag)), _) => tag.clone(),
        (None, _, Some(default)) => match default.get("w") {
            Some(Bson::String(name)) => name.clone(),
            Some(nodes) => nodes.to_string(),
            None => "1".to_owned(),
        },
        (_, _, None) if !matches!(defaults, Stated::Denied) => "1".to_owned(),
        // Versions differ in their reading of a concern without `w`.
        _ => UNSTATED.to_owned(),
    };
    let journaled = match given {
        Some(given) => given.journal,
        None => default.and_then(|default| default.get_bool("j").ok()),
    };
    match journaled {
        Some(journaled) => format!("w={w} j={journaled}"),
        None => format!("w={w}"),
    }
}

/// The read concern in force, and the read preference if the URL states it.
fn read_concern(options: &ClientOptions, defaults: &Stated) -> String {
    let level = match (&options.read_concern, defaults) {
        // The driver shows levels as documents only.
        (Some(given), _) => serialize_to_document(given).ok(),
        (None, Stated::Answer(defaults)) => {
            defaults.get_document("defaultReadConcern").ok().cloned()
        }
        (None, _) => None,
    };
    let level = level.as_ref().and_then(|level| level.get_str("level").ok());
    let level = level.unwrap_or(match defaults {
        Stated::Denied => UNSTATED,
        _ => "local",
    });
    match &options.selection_criteria {
        Some(SelectionCriteria::ReadPreference(preference)) => {
            format!("read_concern={level} read_preference={}", preference_name(preference))
        }
        _ => format!("read_concern={level}"),
    }
}

fn preference_name(preference: &ReadPreference) -> &'static str {
    match preference {
        ReadPreference::Primary => "primary",
        ReadPreference::Secondary { .. } => "secondary",
        ReadPreference::PrimaryPreferred { .. } => "primaryPreferred",
        ReadPreference::SecondaryPreferred { .. } => "secondaryPreferred",
        ReadPreference::Nearest { .. } => "nearest",
        _ => UNSTATED,
    }
}

#[cfg(test)]
mod tests {
    use super::super::target::MongoTarget;
    use super::*;

    fn of(url: &str) -> MongoTarget {
        MongoTarget::parse(url, None).expect("a target")
    }

    /// As replica sets of versions 4.4 and 7.0, a standalone server and a user without rights
    /// answer.
    #[test]
    fn the_concern_in_force_is_that_of_the_target_or_the_default() {
        let majority = doc! { "w": "majority", "wtimeout": 0 };
        let default = doc! {
            "defaultWriteConcern": majority, "defaultReadConcern": { "level": "available" },
        };
        let tagged = doc! { "defaultWriteConcern": { "w": 2, "j": true } };
        let answers = [
            (Stated::Answer(doc! {}), "w=1", "local"),
            (Stated::Answer(default), "w=majority", "available"),
            (Stated::Answer(tagged), "w=2 j=true", "local"),
            (Stated::Unsupported, "w=1", "local"),
            (Stated::Denied, "w=unstated", "unstated"),
        ];
        let plain = of("mongodb://host/data");
        let given = of("mongodb://host/data?w=3&journal=false&readConcernLevel=linearizable");
        for (defaults, write, read) in answers {
            let options = plain.options();
            assert_eq!(write_concern(options.write_concern.as_ref(), &defaults), write);
            assert_eq!(read_concern(options, &defaults), format!("read_concern={read}"));
            let options = given.options();
            assert_eq!(write_concern(options.write_concern.as_ref(), &defaults), "w=3 j=false");
            assert_eq!(read_concern(options, &defaults), "read_concern=linearizable");
        }
        let journaled = of("mongodb://host/data?journal=true");
        let journaled = journaled.options().write_concern.as_ref();
        let default = Stated::Answer(doc! { "defaultWriteConcern": { "w": "majority" } });
        assert_eq!(write_concern(journaled, &default), "w=unstated j=true");
        assert_eq!(write_concern(journaled, &Stated::Unsupported), "w=1 j=true");
    }

    #[test]
    fn deployments_and_journals_are_read_from_answers() {
        assert_eq!(deployment(&doc! { "setName": "rs0", "hosts": [] }), "replica-set:rs0");
        assert_eq!(deployment(&doc! { "msg": "isdbgrid" }), "sharded");
        assert_eq!(deployment(&doc! { "isWritablePrimary": true }), "standalone");
        let set = |enabled: bool| {
            let journal = doc! { "journal": { "enabled": enabled } };
            Stated::Answer(doc! { "argv": [], "parsed": { "storage": journal } })
        };
        assert_eq!((journal(&set(true)), journal(&set(false))), ("on", "off"));
        assert_eq!(journal(&Stated::Answer(doc! { "parsed": 7 })), "default");
        assert_eq!(journal(&Stated::Denied), "unstated");
    }
}
