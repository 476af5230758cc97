//! `esker names`: what is published.

use clap::Args;
use esker_base::Result;
use serde_json::json;

use crate::context::Context;
use crate::text;

/// List published names
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker names
  esker names --json | jq -r .name")]
pub struct Names {}

impl Names {
    /// Lists them.
    pub fn run(self, context: &Context) -> Result<()> {
        let names = context.repository()?.names()?;
        if context.out.is_json() {
            return names.iter().try_for_each(|name| {
                context.out.json(json!({
                    "name": name.name,
                    "set": name.set.to_string(),
                    "published_ns": name.published_ns,
                }))
            });
        }
        if names.is_empty() && context.out.is_terminal() {
            return context.out.line("nothing is published yet: esker import DIR NAME");
        }
        let width = names.iter().map(|name| name.name.chars().count()).max().unwrap_or(0);
        names.iter().try_for_each(|name| {
            let (published, set) = (text::minute(name.published_ns), name.set);
            context.out.line(format!("{:width$}  {published}  @{set}", name.name))
        })
    }
}
