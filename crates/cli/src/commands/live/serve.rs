// SPDX-License-Identifier: Apache-2.0
//! `esker live serve`: runs the server of a live namespace until a signal ends it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use clap::{Args, ValueEnum};
use esker_base::clock::SystemClock;
use esker_base::process::ProcessIdentity;
use esker_base::{Error, Kind, Result};
use esker_fs::names::live_namespace::LiveNamespace;
use esker_fs::repository::Repository;
use esker_fs::session::hold::HolderState;
use esker_live::proof::UserSecret;
use esker_live::server_address::ServerAddress;
use esker_live::{LiveServer, LiveServerOptions};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::standby::stand_by;
use super::writer_state;
use crate::change::{DurabilityLevel, SessionSettings, TakeOver};
use crate::context::CommandContext;
use crate::interrupt::is_ignored;
use crate::output::notice;

/// Interval at which the server's health, and signals, are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Interval at which a standby looks whether the server is gone.
const STANDBY_LOOK: Duration = Duration::from_millis(500);

/// When the server answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum AnswerDurability {
    /// At once, unless the client asks for a durable answer: a crash loses up to the last third of
    /// a second of what was answered without that
    #[default]
    Async,
    /// Once the change survives power loss
    Always,
}

/// Serve a live namespace until Ctrl-C, SIGTERM or SIGHUP
///
/// After `nohup` it outlives the login.
///
/// Any user who can write the store can serve. Only one server at a time writes the namespace:
/// --standby waits until the server that runs is gone and then takes over; clients reconnect and
/// repeat their requests, each of which is carried out once. Clients on this machine connect over a
/// Unix socket, as the users that the kernel names; those of other machines over TCP with --listen,
/// if they know the secret of the server's user, which is in ~/.config/esker/live-secret.
#[derive(Args)]
#[command(after_help = "\
Examples:
  esker live serve run                          for clients of this machine and user
  esker live serve run --listen 0.0.0.0:4200    for clients of other machines, too
  esker live serve run --standby                take over when the server is gone
  esker live serve run --seats 0,1              two of its seats; others on another machine")]
pub struct ServeArguments {
    /// The live namespace
    name: String,
    /// Serve these seats, as 0,2 or 0-2; all unless given
    #[arg(long, value_name = "SEATS", value_delimiter = ',', value_parser = seat_range)]
    seats: Vec<RangeInclusive<u16>>,
    /// Accept TCP connections here; port 0 stands for any. The port of seat K is higher by K
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Host name under which others reach this machine; its own name unless given
    #[arg(long, value_name = "HOST", requires = "listen")]
    host: Option<String>,
    /// File of this user's secret, which --listen makes if it is absent; ~/.config/esker/live-secret
    /// unless given
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,
    /// Let other users of this machine connect; permissions apply to them
    #[arg(long)]
    allow_other: bool,
    /// When changes are answered
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    durability: AnswerDurability,
    /// Memory for changes that are not in tables yet, such as 512M or 2G
    #[arg(long, default_value = "768M", value_parser = crate::quantity::bytes, value_name = "SIZE")]
    memory: u64,
    /// Threads that carry out requests; one for each processor unless given
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Answer requests for metrics here, for Prometheus: GET /metrics over HTTP. Whoever reaches the
    /// port can read them; they name no file and no user. The port of seat K is higher by K
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// Connections to each seat at once, at most; a user other than the server's gets at most a quarter
    #[arg(long, default_value_t = 4096, value_name = "N")]
    connections: usize,
    /// Wait until the server that runs is gone, and then take over
    #[arg(long)]
    standby: bool,
    #[command(flatten)]
    take_over: TakeOver,
}

/// What the threads of the seats report.
enum SeatEvent {
    Serving { seat: u16, address: Box<ServerAddress>, metrics: Option<String> },
    Ended { seat: u16, outcome: Result<()> },
}

impl ServeArguments {
    /// Serves until a signal arrives, or a server fails.
    pub fn run(self, context: &CommandContext) -> Result<()> {
        let failed = |error| Error::io(error, "wait for signals");
        let ending = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal));
        let mut signals = Signals::new(ending).map_err(failed)?;
        let repository = context.repository()?;
        let live = LiveNamespace::load(&**repository.store(), &self.name)?;
        let all = 0..u16::try_from(live.seats.len()).expect("at most SEATS_MAX");
        let mut seats: Vec<u16> = match self.seats.is_empty() {
            true => all.collect(),
            false => self.seats.iter().cloned().flatten().collect(),
        };
        seats.sort_unstable();
        seats.dedup();
        for seat in &seats {
            live.seat(*seat)?;
        }
        self.check_unserved(&repository, &live, &seats)?;
        let options = self.options(context, seats.len())?;
        let (events, reports) = mpsc::channel();
        let is_ending = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seat in &seats {
                let (events, options, is_ending) = (events.clone(), &options, &is_ending);
                let (this, repository) = (&self, &repository);
                scope.spawn(move || {
                    let outcome = this.serve_seat(repository, *seat, options, (&events, is_ending));
                    let _ = events.send(SeatEvent::Ended { seat: *seat, outcome });
                });
            }
            drop(events);
            let reported = self.report(context, (&live, &mut signals), (&reports, &is_ending));
            is_ending.store(true, Ordering::Relaxed);
            reported
        })
    }

    /// Fails if some of `seats`, but not all, are served by others, before any of them is taken.
    fn check_unserved(
        &self,
        repository: &Repository,
        live: &LiveNamespace,
        seats: &[u16],
    ) -> Result<()> {
        if self.standby || self.take_over.is_given() || seats.len() < 2 {
            return Ok(());
        }
        let is_held = |set| writer_state(repository, set) == Some(HolderState::Alive);
        let (served, unserved): (Vec<u16>, Vec<u16>) =
            seats.iter().partition(|seat| is_held(live.seats[usize::from(**seat)]));
        if served.is_empty() || unserved.is_empty() {
            return Ok(());
        }
        let what = format!(
            "{}: {} served by another process: `{}` serves the others, and --take-over all of them",
            self.name,
            match served.len() {
                1 => format!("seat {} is", served[0]),
                _ => format!("seats {} are", list_of(&served)),
            },
            self.command_for(&unserved),
        );
        Err(Error::new(Kind::Conflict, what))
    }

    /// The command that serves `seats`.
    fn command_for(&self, seats: &[u16]) -> String {
        format!("esker live serve {} --seats {}", self.name, list_of(seats))
    }

    /// Tells the user of the servers until all have ended. The end of one is that of all.
    fn report(
        &self,
        context: &CommandContext,
        (live, signals): (&LiveNamespace, &mut Signals),
        (reports, is_ending): (&Receiver<SeatEvent>, &AtomicBool),
    ) -> Result<()> {
        let (mut failure, mut serving, mut has_served) = (None, Vec::new(), false);
        loop {
            if signals.pending().next().is_some() {
                is_ending.store(true, Ordering::Relaxed);
            }
            match reports.recv_timeout(LOOK) {
                Ok(SeatEvent::Serving { seat, address, metrics }) => {
                    serving.push(seat);
                    has_served = true;
                    self.show_serving(context, (live, seat), (&address, metrics.as_deref()))?;
                }
                Ok(SeatEvent::Ended { seat, outcome }) => {
                    is_ending.store(true, Ordering::Relaxed);
                    if let Err(error) = outcome {
                        let (of, was_serving) =
                            (self.seat_text(live, seat), serving.contains(&seat));
                        serving.retain(|other| *other != seat);
                        let what = match (serving.len(), was_serving) {
                            (_, false) => format!("cannot serve {of}"),
                            (0, true) => format!("the server of {of} ends"),
                            (_, true) => format!(
                                "the server of {of} ends, and with it this process; `{}` serves \
                                 its other seats",
                                self.command_for(&serving)
                            ),
                        };
                        failure.get_or_insert(error.within(what));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        if context.out.is_json() {
            return context.out.json(json!({"ended": self.name}));
        }
        context.out.line(match has_served {
            true => {
                format!("{}: everything is in tables; another server can begin at once", self.name)
            }
            false => format!("{}: ended before it served anything", self.name),
        })
    }

    fn seat_text(&self, live: &LiveNamespace, seat: u16) -> String {
        match live.seats.len() {
            1 => self.name.clone(),
            _ => format!("seat {seat} of {}", self.name),
        }
    }

    fn show_serving(
        &self,
        context: &CommandContext,
        (live, seat): (&LiveNamespace, u16),
        (address, metrics): (&ServerAddress, Option<&str>),
    ) -> Result<()> {
        if context.out.is_json() {
            context.out.json(json!({
                "serving": self.name,
                "seat": seat,
                "address": address,
                "metrics": metrics,
            }))?;
        } else {
            let place = match &address.tcp {
                Some(tcp) => format!("at {tcp} and on this machine"),
                None => "on this machine".to_owned(),
            };
            let of = self.seat_text(live, seat);
            context.out.line(format!("serving {of} {place}; Ctrl-C ends it"))?;
            metrics.map_or(Ok(()), |metrics| context.out.line(format!("metrics: {metrics}")))?;
        }
        context.out.flush()
    }

    /// Serves `seat` until all are to end.
    fn serve_seat(
        &self,
        repository: &Repository,
        seat: u16,
        options: &LiveServerOptions,
        (events, is_ending): (&Sender<SeatEvent>, &AtomicBool),
    ) -> Result<()> {
        let options = LiveServerOptions {
            tcp: options.tcp.map(|address| port_of_seat(address, seat)),
            metrics: options.metrics.map(|address| port_of_seat(address, seat)),
            ..options.clone()
        };
        let Some(server) = self.start((repository, seat), &options, is_ending)? else {
            return Ok(());
        };
        let address = Box::new(server.address().clone());
        let metrics = server.metrics_address().map(|address| format!("http://{address}/metrics"));
        let _ = events.send(SeatEvent::Serving { seat, address, metrics });
        while !is_ending.load(Ordering::Relaxed) {
            if let Some(failure) = server.failure() {
                return Err(failure);
            }
            std::thread::sleep(LOOK);
        }
        server.end()
    }

    /// The options of each of `servers`, which share memory and threads.
    fn options(&self, context: &CommandContext, servers: usize) -> Result<LiveServerOptions> {
        let durability = DurabilityLevel::Async;
        let memory = self.memory / servers as u64;
        let settings = SessionSettings { durability, memory };
        let tcp = self.listen.as_deref().map(socket_address).transpose()?;
        let secret_file = self.secret.clone().or_else(UserSecret::default_path);
        let secret = match (tcp, &secret_file) {
            (None, _) => None,
            (Some(_), Some(path)) => Some(UserSecret::read_or_make(path)?),
            (Some(_), None) => {
                let what = "there is no home for a secret: give --secret FILE";
                return Err(Error::new(Kind::Invalid, what));
            }
        };
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(LiveServerOptions {
            session: settings.options_to_resume(context, self.take_over),
            tcp,
            host: self.host.clone().unwrap_or_else(|| ProcessIdentity::current().host),
            secret,
            secret_file,
            allow_other: self.allow_other,
            always_durable: self.durability == AnswerDurability::Always,
            threads: self.threads.unwrap_or(processors).div_ceil(servers),
            connections: self.connections,
            metrics: self.metrics.as_deref().map(socket_address).transpose()?,
            clock: Arc::new(SystemClock),
        })
    }

    /// Starts the server of `seat`; as a standby, once that is possible. Returns `None` if all are to
    /// end first.
    fn start(
        &self,
        (repository, seat): (&Repository, u16),
        options: &LiveServerOptions,
        is_ending: &AtomicBool,
    ) -> Result<Option<LiveServer>> {
        let start = || LiveServer::start(repository, (&self.name, seat), options.clone());
        if !self.standby {
            return start().map(Some);
        }
        let report = |error: &Error| notice(format!("standing by: {error}"));
        stand_by(start, (STANDBY_LOOK, is_ending), report)
    }
}

/// Parses the seats K or A-B.
fn seat_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let number = |text: &str| text.parse().ok();
    let range = match text.split_once('-') {
        Some((first, last)) => number(first).zip(number(last)),
        None => number(text).map(|seat| (seat, seat)),
    };
    let range = range.map(|(first, last)| first..=last).filter(|range| !range.is_empty());
    range.ok_or_else(|| "seats are numbers from 0, as in 0,2 or 0-2".to_owned())
}

/// Numbers of seats as on the command line.
fn list_of(seats: &[u16]) -> String {
    seats.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}

/// The port of the server of `seat`: those of seats follow each other. Port 0 stands for any.
fn port_of_seat(mut address: SocketAddr, seat: u16) -> SocketAddr {
    if address.port() != 0 {
        address.set_port(address.port().saturating_add(seat));
    }
    address
}

fn socket_address(text: &str) -> Result<SocketAddr> {
    let invalid = |why: String| Error::new(Kind::Invalid, format!("--listen {text}: {why}"));
    let mut found = text.to_socket_addrs().map_err(|error| invalid(error.to_string()))?;
    found.next().ok_or_else(|| invalid("no such address".to_owned()))
}
