//! Who a process is, by the variables of whoever started it.
//!
//! Pure, over a function that looks variables up. The order is: ours and Horovod's; torchrun, if it is the innermost;
//! Open MPI; LSF's jsrun; MPICH and its kin; Slurm; the variables torchrun shares with others; what Kubeflow's Trainer tells
//! torchrun, where there is no torchrun; Kubernetes.

use std::str::FromStr;

use corro_core::{Error, Rank, Result, config};

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) rank: Rank,
    pub(super) size: usize,
    /// The variable that says so, for errors.
    by: &'static str,
    /// Whether all ranks are on one host, if that is known.
    pub(super) one_host: Option<bool>,
    /// A name that all ranks of this job know and no other job has.
    pub(super) job: Option<String>,
    /// Rank 0's host and a port that it uses for something else.
    pub(super) master: Option<(String, u16)>,
}

impl Identity {
    /// Something else is needed.
    pub(super) fn lacks(&self, what: &str, advice: &str) -> Error {
        Error::Usage(format!(
            "{} says that this is rank {} of {}, but {what} is not set: {advice}",
            self.by, self.rank, self.size
        ))
    }
}

/// The value of a variable, ours or one of those we know of others.
pub(super) fn read(name: &str) -> Option<String> {
    let ours = |v: &&&config::Variable| v.name == name || v.horovod == Some(name);
    config::VARIABLES.iter().find(ours).map_or_else(|| config::foreign(name), |v| v.value())
}

/// Looks up one variable.
type Get<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What the variables say; `None`: nothing.
pub(super) fn find(get: Get<'_>) -> Result<Option<Identity>> {
    let Some((by, rank, size, local_size)) = rank_and_size(get)? else { return Ok(None) };
    if rank.index() >= size {
        return Err(Error::Usage(format!("{by} is {rank}, but the job has {size} ranks only")));
    }
    let nodes = || Some(number::<usize>(get, "SLURM_STEP_NUM_NODES").ok()??.eq(&1));
    let one_host = match local_size {
        Some(local) => Some(local == size),
        None if by == "SLURM_PROCID" => {
            nodes().or_else(|| Some(number::<usize>(get, "SLURM_JOB_NUM_NODES").ok()??.eq(&1)))
        }
        None => None,
    };
    let (host, port) =
        if by == TRAINER_RANK { ("PET_MASTER_ADDR", "PET_MASTER_PORT") } else { ("MASTER_ADDR", "MASTER_PORT") };
    let port = number::<usize>(get, port)?.and_then(|p| u16::try_from(p).ok());
    let master = get(host).zip(port);
    let job = job_name(get, by, one_host == Some(true), master.as_ref());
    Ok(Some(Identity { rank, size, by, one_host, job, master }))
}

type RankAndSize = (&'static str, Rank, usize, Option<usize>);

fn rank_and_size(get: Get<'_>) -> Result<Option<RankAndSize>> {
    let inner_torchrun = get("TORCHELASTIC_RUN_ID").is_some();
    let torchrun = ("RANK", "WORLD_SIZE", Some("LOCAL_WORLD_SIZE"));
    let strict = [
        (config::RANK.name, config::SIZE.name, Some(config::LOCAL_SIZE.name)),
        // torchrun is often itself started by srun or mpirun, whose variables then mean torchrun, not the ranks.
        ("RANK", if inner_torchrun { "WORLD_SIZE" } else { "" }, torchrun.2),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", Some("OMPI_COMM_WORLD_LOCAL_SIZE")),
        ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", Some("JSM_NAMESPACE_LOCAL_SIZE")),
        ("PMI_RANK", "PMI_SIZE", Some("MPI_LOCALNRANKS")),
    ];
    for (rank, size, local) in strict.into_iter().filter(|(_, size, _)| !size.is_empty()) {
        let local = || local.and_then(|name| number(get, name).ok().flatten());
        match (number(get, rank)?, number(get, size)?) {
            (Some(r), Some(s)) => return Ok(Some((rank, r, s, local()))),
            (None, None) => {}
            // Kubernetes tells the rank only; the size has to be given by hand.
            (None, Some(1)) if rank == config::RANK.name => return Ok(None),
            (None, Some(s)) if rank == config::RANK.name => match number(get, POD_INDEX)? {
                Some(r) => return Ok(Some((POD_INDEX, r, s, None))),
                None => return Err(half(size, rank)),
            },
            (Some(_), None) => return Err(half(rank, size)),
            (None, Some(_)) => return Err(half(size, rank)),
        }
    }
    // In a batch script, outside any step, Slurm speaks of the whole allocation and not of this process.
    if get("SLURM_STEP_ID").is_some()
        && let Some(rank) = number(get, "SLURM_PROCID")?
        && let Some(size) = number(get, "SLURM_STEP_NUM_TASKS")?.or(number(get, "SLURM_NTASKS")?)
    {
        return Ok(Some(("SLURM_PROCID", rank, size, None)));
    }
    // Names as plain as these may mean something else: both must be there, and a master with them.
    let size = number(get, torchrun.1).ok().flatten();
    let rank = number(get, torchrun.0).ok().flatten();
    if let (Some(rank), Some(size), Some(_)) = (rank, size, get("MASTER_ADDR")) {
        return Ok(Some((torchrun.0, rank, size, number(get, "LOCAL_WORLD_SIZE").ok().flatten())));
    }
    if let Some(found) = trainers_pod(get)? {
        return Ok(Some(found));
    }
    match (number::<Rank>(get, POD_INDEX)?, size) {
        (Some(rank), Some(size)) => Ok(Some((POD_INDEX, rank, size, None))),
        // Silently training as many models as there are pods would be worse than any error.
        (Some(rank), None) => Err(Error::Usage(format!(
            "{POD_INDEX} is {rank}: this is a pod of an indexed Kubernetes job, but nothing says how many ranks the job has. \
             Set {} in the pod's template to the job's `completions`; or to 1 if its pods have nothing to do with each other",
            config::SIZE.name
        ))),
        (None, _) => Ok(None),
    }
}

/// What Kubeflow's Trainer tells torchrun by variables, for a program that it starts without torchrun: one rank a pod.
fn trainers_pod(get: Get<'_>) -> Result<Option<RankAndSize>> {
    let Some(rank) = number(get, TRAINER_RANK)? else { return Ok(None) };
    let Some(nodes) = get("PET_NNODES") else { return Err(half(TRAINER_RANK, "PET_NNODES")) };
    let several = |what: &str| {
        Error::Usage(format!("{what}, which needs somebody to start them: run the program by `torchrun` in this pod"))
    };
    let Ok(size) = nodes.trim().parse() else {
        return Err(several(&format!("PET_NNODES is {nodes:?}: the number of pods may change")));
    };
    // Words like `auto` mean as many as there are devices, which only torchrun counts.
    match get("PET_NPROC_PER_NODE").map(|text| text.trim().to_owned()).as_deref() {
        None | Some("1" | "auto") => Ok(Some((TRAINER_RANK, rank, size, None))),
        Some(processes) => {
            Err(several(&format!("PET_NPROC_PER_NODE is {processes:?}: this pod is to have several ranks")))
        }
    }
}

/// Which pod of an indexed Kubernetes job this is.
const POD_INDEX: &str = "JOB_COMPLETION_INDEX";
/// Which pod of a Trainer's job this is.
const TRAINER_RANK: &str = "PET_NODE_RANK";

fn half(there: &str, missing: &str) -> Error {
    Error::Usage(format!("{there} is set but {missing} is not: set both, or neither for a world of one"))
}

fn number<T: FromStr>(get: Get<'_>, name: &str) -> Result<Option<T>> {
    let parse = |text: String| {
        text.trim()
            .parse()
            .map_err(|_| Error::Usage(format!("environment variable {name} is {text:?}, which is not a number")))
    };
    get(name).map(parse).transpose()
}

fn job_name(get: Get<'_>, by: &str, one_host: bool, master: Option<&(String, u16)>) -> Option<String> {
    if let Some(name) = get(config::JOB_ID.name) {
        return Some(name);
    }
    let torchrun = || {
        let (host, port) = master?;
        let run = get("TORCHELASTIC_RUN_ID")?;
        Some(format!("torchrun-{run}-{host}-{port}-{}", get("TORCHELASTIC_RESTART_COUNT").unwrap_or_default()))
    };
    let slurm = || {
        // A job that was put back into the queue keeps its numbers.
        let again = get("SLURM_RESTART_COUNT").filter(|count| count != "0").map(|count| format!("-again{count}"));
        Some(format!("slurm-{}-{}{}", get("SLURM_JOB_ID")?, get("SLURM_STEP_ID")?, again.unwrap_or_default()))
    };
    let jsrun = || Some(format!("lsf-{}-{}", get("LSB_JOBID")?, get("JSM_NAMESPACE_ID").unwrap_or_default()));
    let pmix = || get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
    match by {
        "RANK" => torchrun().or_else(slurm),
        "OMPI_COMM_WORLD_RANK" => pmix(),
        "JSM_NAMESPACE_RANK" => pmix().or_else(jsrun),
        // Hydra gives its jobs no name; on one host all ranks descend from one process of its own.
        "PMI_RANK" => pmix().or_else(slurm).or_else(|| one_host.then(common_ancestor).flatten()),
        "SLURM_PROCID" => slurm(),
        _ => None,
    }
}

/// The nearest ancestor that is an MPI launcher's, by its number and the moment it started, which no other has.
fn common_ancestor() -> Option<String> {
    let mut pid = rustix::process::getppid()?.as_raw_nonzero().get();
    // Wrapper scripts may stand in between.
    for _ in 0..16 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        if name.starts_with("hydra_") || name.starts_with("pmi_proxy") || name.starts_with("mpiexec") {
            return Some(format!("hydra-{pid}-{}", words.get(19)?));
        }
        pid = words.get(1)?.parse().ok().filter(|p| *p > 1)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(pairs: &[(&str, &str)]) -> Result<Option<Identity>> {
        find(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn every_launcher_is_understood() {
        let slurm = [
            ("SLURM_PROCID", "2"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_JOB_NUM_NODES", "2"),
        ];
        let torch = [
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "n1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "none"),
        ];
        let ompi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "prterun-1@1"),
        ];
        let trainer = [
            ("PET_NODE_RANK", "1"),
            ("PET_NNODES", "3"),
            ("PET_NPROC_PER_NODE", "1"),
            ("PET_MASTER_ADDR", "trainer-node-0-0.trainer"),
            ("PET_MASTER_PORT", "29400"),
        ];
        let job = |found: &Identity| found.job.clone().unwrap_or_default();
        let all = |groups: &[&[(&'static str, &'static str)]]| groups.concat();
        for (name, given, want) in [
            (
                "ours",
                vec![("CORRO_RANK", "3"), ("CORRO_SIZE", "4"), ("RANK", "0"), ("WORLD_SIZE", "9")],
                (3, 4, None, ""),
            ),
            (
                "ours on one host",
                vec![("CORRO_RANK", "3"), ("CORRO_SIZE", "4"), ("CORRO_LOCAL_SIZE", "4")],
                (3, 4, Some(true), ""),
            ),
            ("open mpi", ompi.to_vec(), (1, 4, Some(true), "prterun-1@1")),
            ("slurm", slurm.to_vec(), (2, 4, Some(false), "slurm-77-0")),
            (
                "slurm, not queued again",
                all(&[&slurm, &[("SLURM_RESTART_COUNT", "0")]]),
                (2, 4, Some(false), "slurm-77-0"),
            ),
            (
                "slurm, queued again",
                all(&[&slurm, &[("SLURM_RESTART_COUNT", "2")]]),
                (2, 4, Some(false), "slurm-77-0-again2"),
            ),
            ("torchrun", torch.to_vec(), (1, 2, Some(true), "torchrun-none-n1-29500-")),
            ("torchrun under srun", all(&[&slurm, &torch]), (1, 2, Some(true), "torchrun-none-n1-29500-")),
            ("torchrun under mpirun", all(&[&ompi, &torch]), (1, 2, Some(true), "torchrun-none-n1-29500-")),
            ("kubeflow", torch[..5].to_vec(), (1, 2, Some(true), "")),
            ("kubernetes", vec![("JOB_COMPLETION_INDEX", "5"), ("CORRO_SIZE", "6")], (5, 6, None, "")),
            ("kubeflow's trainer", all(&[&trainer, &[("JOB_COMPLETION_INDEX", "0")]]), (1, 3, None, "")),
            ("torchrun in a trainer's pod", all(&[&trainer, &torch]), (1, 2, Some(true), "torchrun-none-n1-29500-")),
            ("kubernetes by torch's name", vec![("JOB_COMPLETION_INDEX", "5"), ("WORLD_SIZE", "6")], (5, 6, None, "")),
            (
                "jsrun",
                vec![
                    ("JSM_NAMESPACE_RANK", "1"),
                    ("JSM_NAMESPACE_SIZE", "4"),
                    ("JSM_NAMESPACE_LOCAL_SIZE", "2"),
                    ("JSM_NAMESPACE_ID", "3"),
                    ("LSB_JOBID", "99"),
                ],
                (1, 4, Some(false), "lsf-99-3"),
            ),
            (
                "mpich over hosts",
                vec![("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2"), ("CORRO_JOB_ID", "x")],
                (0, 4, Some(false), "x"),
            ),
        ] {
            let found = look(&given).unwrap().unwrap();
            assert_eq!((found.rank.index(), found.size, found.one_host, job(&found).as_str()), want, "{name}");
        }
    }

    #[test]
    fn the_trainers_master_is_found() {
        let given =
            [("PET_NODE_RANK", "1"), ("PET_NNODES", "3"), ("PET_MASTER_ADDR", "n0"), ("PET_MASTER_PORT", "29400")];
        assert_eq!(look(&given).unwrap().unwrap().master, Some(("n0".into(), 29400)));
    }

    #[test]
    fn what_means_nothing_is_a_world_of_one() {
        for given in [
            vec![],
            vec![("RANK", "3")],
            vec![("WORLD_SIZE", "3")],
            vec![("RANK", "x"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "a")],
            // A batch script of Slurm, outside any step.
            vec![("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "1")],
            // An indexed job of Kubernetes whose pods have nothing to do with each other.
            vec![("JOB_COMPLETION_INDEX", "3"), ("CORRO_SIZE", "1")],
            vec![("CORRO_SIZE", "1")],
        ] {
            assert_eq!(look(&given).unwrap(), None, "{given:?}");
        }
    }

    #[test]
    fn halves_and_nonsense_are_told() {
        for (given, word) in [
            (vec![("CORRO_RANK", "1")], "CORRO_SIZE"),
            (vec![("CORRO_SIZE", "2")], "CORRO_RANK"),
            (vec![("OMPI_COMM_WORLD_RANK", "1")], "OMPI_COMM_WORLD_SIZE"),
            (vec![("PMI_SIZE", "1")], "PMI_RANK"),
            (vec![("CORRO_RANK", "one"), ("CORRO_SIZE", "2")], "CORRO_RANK"),
            (vec![("CORRO_RANK", "2"), ("CORRO_SIZE", "2")], "2 ranks only"),
            (vec![("JOB_COMPLETION_INDEX", "3")], "CORRO_SIZE"),
            (vec![("PET_NODE_RANK", "0")], "PET_NNODES"),
            (vec![("PET_NODE_RANK", "0"), ("PET_NNODES", "1:4")], "torchrun"),
            (vec![("PET_NODE_RANK", "0"), ("PET_NNODES", "2"), ("PET_NPROC_PER_NODE", "8")], "torchrun"),
        ] {
            let text = look(&given).unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
    }
}
