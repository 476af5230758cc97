// SPDX-License-Identifier: Apache-2.0
//! `esker mount live:NAME`: a live namespace as a directory of the machine.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use esker_base::Result;
use esker_base::clock::SystemClock;
use esker_fuse::{LIVE, LiveMount, LiveMountOptions};
use esker_live::client::LiveClientOptions;

use super::{MountCommand, RequestTransport, report, store_directory};
use crate::change::DurabilityLevel;
use crate::context::CommandContext;
use crate::usage;

/// Parses the time for which the kernel keeps names and attributes.
pub(super) fn refresh_seconds(text: &str) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give seconds, such as 0.5, at most a day".into()),
    }
}

impl MountCommand {
    /// The name of the live namespace to mount, if it is one.
    pub(super) fn live_name(&self) -> Option<&str> {
        self.what.first().filter(|_| self.what.len() == 2)?.strip_prefix(LIVE)
    }

    /// Mounts the live namespace `name`. Options of other mounts are usage errors.
    pub(super) fn mount_live(
        &self,
        context: &CommandContext,
        name: &str,
        mountpoint: &Path,
    ) -> Result<LiveMount> {
        if self.write_back || matches!(self.transport, RequestTransport::Uring) {
            usage::exit("a live namespace has no --write-back and no --transport uring");
        }
        if self.take_over.is_given() {
            usage::exit("`esker live serve --take-over` replaces the server of a live namespace");
        }
        let options = LiveMountOptions {
            client: LiveClientOptions::default(),
            threads: self.threads,
            allows_others: self.allow_other || rustix::process::geteuid().is_root(),
            ttl: Duration::from_secs_f64(self.refresh),
            is_durable: matches!(self.settings.durability, DurabilityLevel::Always),
            counts_requests: self.statistics,
            store: store_directory(context),
            clock: Arc::new(SystemClock),
            report: Box::new(report),
        };
        LiveMount::new(&context.store()?, name, mountpoint, options)
    }
}
