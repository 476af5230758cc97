// SPDX-License-Identifier: Apache-2.0
//! Job: a process's view of its job, read from the environment: its rank, the number of ranks, and
//! where to meet.
//!
//! | started by | rank, ranks | job | node |
//! |---|---|---|---|
//! | `esker run` | `ESKER_RANK`, `ESKER_RANKS` | `ESKER_JOB` | `ESKER_NODE` |
//! | `srun` | `SLURM_PROCID`, `SLURM_NTASKS` | `SLURM_JOB_ID` and `SLURM_STEP_ID` | `SLURM_NODEID` |
//! | Open MPI's `mpirun` | `OMPI_COMM_WORLD_RANK`, `_SIZE` | `PMIX_NAMESPACE` | the host's name |
//! | MPICH's `mpirun` | `PMI_RANK`, `PMI_SIZE` | `ESKER_JOB` | the host's name |
//!
//! The variables of `esker run` take precedence one by one, so any of them can be set by hand. Those
//! of `mpirun` take precedence over those of `srun`.

use esker_base::{Error, Kind, Result};

use crate::Rank;

/// Environment variable: this process's rank.
pub const RANK: &str = "ESKER_RANK";
/// Environment variable: the number of ranks.
pub const RANKS: &str = "ESKER_RANKS";
/// Environment variable: the job's id, unique among jobs that meet in the same store.
pub const JOB: &str = "ESKER_JOB";
/// Environment variable: the name of the rank's node.
pub const NODE: &str = "ESKER_NODE";
/// Environment variable: the URL of the store in which ranks meet; defaults to `ESKER_STORE`.
pub const MEET: &str = "ESKER_MEET";
/// Environment variable: the name or IP address at which other ranks reach this one; defaults to
/// the host's name.
pub const ADDRESS: &str = "ESKER_ADDRESS";

/// A process's identity within its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankContext {
    /// Distinguishes the job from others that meet in the same store.
    pub id: String,
    /// This process's rank.
    pub rank: Rank,
    /// Number of ranks.
    pub size: u32,
    /// Name of the rank's node: ranks with the same name share a node.
    pub node: String,
    /// Name or address at which other ranks reach this one; `None` if only its own host can.
    pub address: Option<String>,
    /// URL of the store to meet in.
    pub meet: Option<String>,
}

impl RankContext {
    /// Reads this process's job from the environment; `None` if the process was not started as a
    /// rank.
    ///
    /// # Errors
    /// `Invalid` if the environment contradicts itself, or gives ranks but no job id.
    pub fn from_env() -> Result<Option<Self>> {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self::from(&host, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    /// Reads only the number of this process among those that were started with it; `None` if it was
    /// not started as a rank.
    ///
    /// # Errors
    /// `Invalid` if the variable is no number.
    pub fn rank_from_env() -> Result<Option<Rank>> {
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let found = STARTERS.iter().find_map(|(name, _)| Some((*name, get(name)?)));
        found.map(|(name, value)| number(name, &value).map(Rank)).transpose()
    }

    /// As [`RankContext::from_env`], for a given host name and with variables looked up by `get`.
    ///
    /// # Errors
    /// As [`RankContext::from_env`].
    pub fn from(host: &str, get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let Some((rank, size)) = rank_and_size(&get)? else { return Ok(None) };
        let id = get(JOB).or_else(|| job_of_starter(&get)).ok_or_else(|| {
            let what = format!("set {JOB} to the same new word for all ranks of a job");
            Error::new(Kind::Invalid, what)
        })?;
        let node = get(NODE).or_else(|| get("SLURM_NODEID")).unwrap_or_else(|| host.to_owned());
        let address = Some(get(ADDRESS).unwrap_or_else(|| host.to_owned()));
        let meet = get(MEET).or_else(|| get("ESKER_STORE"));
        Ok(Some(Self { id, rank, size, node, address, meet }))
    }
}

/// The variables by which programs that start ranks say a rank's number, and that of all. Processes
/// of `mpirun` in a job of Slurm also have Slurm's, which count other processes.
const STARTERS: [(&str, &str); 4] = [
    (RANK, RANKS),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// The number of this process, and that of all, by the variables of whatever has started them.
fn rank_and_size(get: &impl Fn(&str) -> Option<String>) -> Result<Option<(Rank, u32)>> {
    let found = STARTERS.iter().find_map(|names| Some((names, get(names.0)?)));
    let Some(((rank_name, size_name), rank)) = found else { return Ok(None) };
    let size = get(size_name).ok_or_else(|| invalid(rank_name, &rank, size_name))?;
    let (rank, size) = (number(rank_name, &rank)?, number(size_name, &size)?);
    if rank >= size {
        let what = format!("{rank_name}={rank} is not below {size_name}={size}");
        return Err(Error::new(Kind::Invalid, what));
    }
    Ok(Some((Rank(rank), size)))
}

fn number(name: &str, value: &str) -> Result<u32> {
    value.parse().map_err(|_| Error::new(Kind::Invalid, format!("{name}={value}")))
}

fn invalid(rank_name: &str, rank: &str, size_name: &str) -> Error {
    Error::new(Kind::Invalid, format!("{rank_name}={rank} is set, but {size_name} is not"))
}

fn job_of_starter(get: impl Fn(&str) -> Option<String>) -> Option<String> {
    let usable = |id: String| {
        id.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>()
    };
    let slurm = || Some(format!("slurm-{}-{}", get("SLURM_JOB_ID")?, get("SLURM_STEP_ID")?));
    let pmix = || Some(format!("pmix-{}", get("PMIX_NAMESPACE")?));
    let ompi = || Some(format!("ompi-{}", get("OMPI_MCA_ess_base_jobid")?));
    slurm().or_else(pmix).or_else(ompi).map(usable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(variables: &[(&str, &str)]) -> Result<Option<RankContext>> {
        RankContext::from("host", |name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn every_starter_is_understood() {
        let ours = job(&[(RANK, "3"), (RANKS, "8"), (JOB, "j"), (NODE, "1")]).unwrap().unwrap();
        assert_eq!((ours.rank, ours.size), (Rank(3), 8));
        assert_eq!((&ours.id[..], &ours.node[..]), ("j", "1"));
        let slurm = job(&[
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_NODEID", "4"),
        ]);
        let slurm = slurm.unwrap().unwrap();
        assert_eq!((&slurm.id[..], &slurm.node[..]), ("slurm-77-0", "4"));
        let open = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let named = [open[0], open[1], ("PMIX_NAMESPACE", "12@x/1")];
        assert_eq!(job(&named).unwrap().unwrap().id, "pmix-12-x-1");
        // Within a job of Slurm, whose variables are those of the process that runs `mpirun`.
        let inside = [named[0], named[1], named[2], ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
        let inside = job(&inside).unwrap().unwrap();
        assert_eq!((inside.rank, inside.size), (Rank(1), 2));
        let mpich = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), (JOB, "mine")];
        let mpich = job(&mpich).unwrap().unwrap();
        assert_eq!((&mpich.id[..], &mpich.node[..]), ("mine", "host"));
    }

    #[test]
    fn a_process_of_its_own_is_in_no_job() {
        assert_eq!(job(&[]).unwrap(), None);
    }

    #[test]
    fn contradictions_are_refused() {
        let refused: [&[(&str, &str)]; 4] = [
            &[(RANK, "0"), (JOB, "j")],
            &[(RANK, "2"), (RANKS, "2"), (JOB, "j")],
            &[(RANK, "x"), (RANKS, "2"), (JOB, "j")],
            &[("PMI_RANK", "0"), ("PMI_SIZE", "2")],
        ];
        for variables in refused {
            assert_eq!(job(variables).unwrap_err().kind(), Kind::Invalid);
        }
    }
}
