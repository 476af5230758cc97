// SPDX-License-Identifier: Apache-2.0
//! `esker-bench imd-write`: writes an indexed directory of synthetic particles.

use clap::{Args, ValueEnum};
use esker_base::store::url;
use esker_base::{Error, Kind, Result};
use esker_bench::particles::{KEY_BYTES, ParticleCount};
use esker_bench::report::BenchReport;
use esker_bench::{ImdWrite, imd_write, imd_write_as_first, write_rank};
use esker_comm::job::RankContext;
#[cfg(feature = "mpi")]
use esker_comm::mpi;
use esker_comm::{Channel, Rank, Routing, Transport, tcp};
use esker_fs::session::Session;
use esker_imd::{RecordLayout, SessionDirectory, WriteSummary};
use esker_table::manifest::SetId;
use serde_json::json;

use crate::commands::imd::target::{DirectoryTarget, PublishedDirectory, new_directory};
use crate::commands::imd::value_format::ValueFormatName;
use crate::context::CommandContext;
use crate::output::{notice, value_of};
use crate::rank_transport::TransportName;
#[cfg(not(feature = "mpi"))]
use crate::rank_transport::built_without_mpi;
use crate::{quantity, text};

/// Channel on which rank 0 sends the directory to write.
const PLACE: Channel = Channel(0x20);

/// How records travel between ranks.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum RoutingName {
    /// From rank to rank
    #[default]
    Direct,
    /// Through a representative on each node
    #[value(name = "3hop")]
    ThreeHop,
}

impl RoutingName {
    /// The routing.
    pub const fn routing(self) -> Routing {
        match self {
            Self::Direct => Routing::Direct,
            Self::ThreeHop => Routing::ThreeHop,
        }
    }
}

/// Write an indexed directory of synthetic particles
///
/// Every key gets a value in each epoch, each time from another rank. Values derive from key and
/// epoch, so `imd-get` can check what it reads. Creates the store if there is none. The
/// directory is published under the target's name, or under --as on top of it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker bench imd-write run:/particles --store /dev/shm/store --keys 16000000
  esker bench imd-write run:/p --ranks 64 --per-node 8 --routing 3hop --format static --keys 100000
  esker run -n 16 --per-node 4 -- esker bench imd-write run:/p --routing 3hop
  mpirun -n 16 esker bench imd-write run:/p --transport mpi --routing 3hop")]
pub struct ImdWriteCommand {
    #[command(flatten)]
    target: DirectoryTarget,
    /// Number of ranks that write, as threads; processes know their number
    #[arg(long, default_value_t = 1, value_name = "R")]
    ranks: u32,
    /// Ranks on each node, for routing; all on one unless given
    #[arg(long, value_name = "C")]
    per_node: Option<u32>,
    /// Number of keys, each written once per epoch
    #[arg(long, default_value_t = 1_000_000, value_name = "N")]
    keys: u64,
    /// Bytes of each value
    #[arg(long, default_value_t = 40, value_name = "V")]
    value_bytes: u32,
    /// Number of epochs
    #[arg(long, default_value_t = 1, value_name = "E")]
    epochs: u32,
    /// How readers reach values
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: ValueFormatName,
    /// How records travel
    #[arg(long, value_enum, default_value_t, value_name = "ROUTING")]
    routing: RoutingName,
    /// Kind of ranks; by default processes over TCP if `esker run`, srun or mpirun started this
    /// one, otherwise threads
    #[arg(long, value_enum, value_name = "TRANSPORT")]
    transport: Option<TransportName>,
    /// Memory of each rank, such as 64M
    #[arg(long, default_value = "256M", value_parser = quantity::bytes, value_name = "SIZE")]
    rank_memory: u64,
}

impl ImdWriteCommand {
    /// Writes the directory.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        match self.transport()? {
            TransportName::Threads => self.lead(context, |session| {
                let directory = new_directory(session);
                let work = self.work(directory, self.ranks);
                let store = session.namespace().layers().source().store.clone();
                let written = imd_write(&store, &directory.prefix(), &work)?;
                self.target.publish_directory(context, session, directory)?;
                Ok(written)
            }),
            TransportName::Tcp => self.run_over_tcp(context),
            TransportName::Mpi => self.run_over_mpi(context),
        }
    }

    /// The kind of ranks, as given or as this process was started.
    fn transport(&self) -> Result<TransportName> {
        match (self.transport, RankContext::from_env()) {
            (None, job) => Ok(job?.map_or(TransportName::Threads, |_| TransportName::Tcp)),
            (Some(TransportName::Threads), Ok(Some(job))) if job.size > 1 => {
                let RankContext { rank, size, .. } = job;
                let what = format!(
                    "this is {rank} of a job of {size} processes, each of which would write the \
                     whole directory with --transport threads: leave it out, and they write it together"
                );
                Err(Error::new(Kind::Invalid, what))
            }
            (Some(transport), _) => Ok(transport),
        }
    }

    /// Begins a session, lets `write` fill and place the directory, publishes and reports.
    fn lead(
        &self,
        context: &CommandContext,
        write: impl FnOnce(&Session) -> Result<(BenchReport, WriteSummary)>,
    ) -> Result<()> {
        let ((report, summary), published) = self.target.publish(context, write)?;
        show(context, &report, &summary, &published)
    }

    fn run_over_tcp(&self, context: &CommandContext) -> Result<()> {
        let job = RankContext::from_env()?.ok_or_else(|| {
            let what = "not a rank of a job: start its ranks together, as `esker run --help` shows";
            Error::new(Kind::Invalid, what)
        })?;
        let store = context.store_of_rank(job.rank)?;
        let meet = job.meet.as_deref().map_or(Ok(store), url::open)?;
        tcp::run(&*meet, &job, &tcp::TcpOptions::default(), |rank| self.run_rank(context, rank))
    }

    #[cfg(feature = "mpi")]
    fn run_over_mpi(&self, context: &CommandContext) -> Result<()> {
        let options = mpi::MpiOptions { per_node: self.per_node, ..mpi::MpiOptions::default() };
        let work = |rank: &mut mpi::MpiTransport| self.run_rank(context, rank);
        mpi::run(&options, work, |error| notice(error.to_string()))
    }

    #[cfg(not(feature = "mpi"))]
    #[expect(clippy::unused_self, reason = "with MPI it writes")]
    fn run_over_mpi(&self, _: &CommandContext) -> Result<()> {
        Err(built_without_mpi())
    }

    /// Runs this process as one rank of a job. Rank 0 leads and sends the others the directory.
    fn run_rank(&self, context: &CommandContext, transport: &mut impl Transport) -> Result<()> {
        let ranks = transport.size();
        if transport.rank() != Rank(0) {
            let told = transport.receive_soon(&[PLACE], "where to write")?;
            let place = told.bytes.split_first_chunk::<16>();
            let place = place.and_then(|(set, rest)| Some((set, rest.first_chunk::<8>()?)));
            let (set, number) =
                place.ok_or_else(|| Error::new(Kind::Corrupt, "rank 0 named no directory"))?;
            let set = SetId(u128::from_le_bytes(*set));
            let directory = SessionDirectory { set, number: u64::from_le_bytes(*number) };
            let (work, prefix) = (self.work(directory, ranks), directory.prefix());
            // Rank 0 has created the store if there was none.
            return write_rank(&context.store()?, &prefix, transport, &work).map(drop);
        }
        self.lead(context, |session| {
            let directory = new_directory(session);
            let SessionDirectory { set, number } = directory;
            let told = [&set.0.to_le_bytes()[..], &number.to_le_bytes()].concat();
            for rank in Rank::all(ranks).skip(1) {
                transport.send(rank, PLACE, told.clone())?;
            }
            let work = self.work(directory, ranks);
            let store = session.namespace().layers().source().store.clone();
            let written = imd_write_as_first(&store, &directory.prefix(), transport, &work)?;
            self.target.publish_directory(context, session, directory)?;
            Ok(written)
        })
    }

    fn work(&self, directory: SessionDirectory, ranks: u32) -> ImdWrite {
        let layout =
            RecordLayout::Fixed { key_bytes: KEY_BYTES as u8, value_bytes: self.value_bytes };
        let mut options = directory.options(self.format.format(), layout);
        options.routing = self.routing.routing();
        options.memory_bytes = self.rank_memory;
        let value_bytes = self.value_bytes as usize;
        let particles = ParticleCount { keys: self.keys, value_bytes, ranks };
        let per_node = self.per_node.unwrap_or(ranks);
        ImdWrite { particles, epochs: self.epochs, options, per_node }
    }
}

/// Prints what was written and published.
fn show(
    context: &CommandContext,
    report: &BenchReport,
    summary: &WriteSummary,
    published: &PublishedDirectory,
) -> Result<()> {
    let PublishedDirectory { name, set } = published;
    if !context.out.is_json() {
        context.out.line(report.to_string())?;
        let epochs = text::counted(summary.epochs, "epoch");
        return context.out.line(format!("published {name} @{set}, {epochs}"));
    }
    let mut value = value_of(report);
    if let Some(object) = value.as_object_mut() {
        object.insert("epochs".into(), json!(summary.epochs));
        object.insert("published".into(), json!(name));
        object.insert("set".into(), json!(set));
    } else {
        notice("a report is no object");
    }
    context.out.json(value)
}
