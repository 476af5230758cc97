// SPDX-License-Identifier: Apache-2.0
//! Check: one thing that was tried on this machine, its outcome, and what to do about it.

use esker_base::{Error, Result};
use serde_json::{Map, Value, json};

use crate::context::CommandContext;
use crate::text;

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    /// It works.
    Works,
    /// It works for some uses.
    Limited,
    /// It does not work.
    Fails,
    /// A fact that is neither good nor bad.
    Info,
}

impl CheckStatus {
    /// The word in text and in JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Limited => "limited",
            Self::Fails => "fails",
            Self::Info => "info",
        }
    }
}

/// Something that was tried.
#[derive(Clone, Debug)]
pub struct MachineCheck {
    /// Its name, which stays the same in later releases.
    pub name: &'static str,
    /// The outcome.
    pub status: CheckStatus,
    /// The observation, with its cause.
    pub finding: String,
    /// The next step.
    pub advice: Option<String>,
    /// Numbers and words for programs.
    pub values: Map<String, Value>,
}

impl MachineCheck {
    /// A check named `name`.
    pub fn new(name: &'static str, status: CheckStatus, finding: impl Into<String>) -> Self {
        Self { name, status, finding: finding.into(), advice: None, values: Map::new() }
    }

    /// A check that failed with `error`, whose message says what to do.
    pub fn failed(name: &'static str, error: &Error) -> Self {
        Self::new(name, CheckStatus::Fails, error.to_string())
    }

    /// The check with advice.
    pub fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..self }
    }

    /// The check with a value for programs.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.values.insert(key.to_owned(), value.into());
        self
    }

    /// The finding and the advice on one line.
    pub fn explanation(&self) -> String {
        let finding = text::printable(self.finding.as_bytes());
        match &self.advice {
            Some(advice) => format!("{finding}: {}", text::printable(advice.as_bytes())),
            None => finding,
        }
    }

    /// Prints the check as a line.
    pub fn print(&self, context: &CommandContext) -> Result<()> {
        if context.out.is_json() {
            return context.out.json(json!({
                "check": self.name,
                "status": self.status.word(),
                "finding": self.finding,
                "advice": self.advice,
                "values": self.values,
            }));
        }
        let (status, name) = (self.status.word(), self.name);
        context.out.line(format!("{status:<8} {name:<13} {}", self.explanation()))
    }
}
