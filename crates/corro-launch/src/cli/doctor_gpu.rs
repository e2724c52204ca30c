//! What `corro doctor` says about GPUs. Opens the driver, as ranks would.

use std::path::PathBuf;

use corro_core::Result;
use corro_cuda::sharing::share;
use corro_cuda::{Allocation, Device, Driver, Nccl, driver};

use super::finding::{Finding, Verdict, ask, finding};
use super::script;

const GIB: u64 = 1 << 30;

/// All findings.
pub(super) fn findings() -> Vec<Finding> {
    let devices = driver().and_then(|driver| Ok((driver, all(driver)?)));
    let (driver, devices) = match devices {
        Ok((_, devices)) if devices.is_empty() => return vec![none("the driver knows no GPU")],
        Ok(found) => found,
        Err(error) => return vec![none(&error.to_string())],
    };
    let mut findings = vec![gpus(driver, &devices)];
    findings.extend(peers(&devices));
    findings.extend(devices.first().map(sharing));
    findings.extend(devices.first().map(mps));
    findings.push(match nccl() {
        Ok(nccl) => finding(Verdict::Fine, "NCCL", format!("{} ({})", readable(nccl.version()), nccl.found())),
        Err(error) => {
            finding(Verdict::Note, "NCCL", format!("not found: GPUs of several hosts go through host memory. {error}"))
        }
    });
    findings
}

fn none(why: &str) -> Finding {
    finding(Verdict::Note, "CUDA", format!("no NVIDIA GPU: training runs on CPUs ({why})"))
}

fn all(driver: &'static Driver) -> Result<Vec<Device>> {
    (0..driver.device_count()?).map(|ordinal| driver.device(ordinal)).collect()
}

fn gpus(driver: &Driver, devices: &[Device]) -> Finding {
    let describe = |device: &Device| -> Result<String> {
        Ok(format!("{} ({} GiB)", device.name()?, device.total_memory()? / GIB))
    };
    let all: Vec<String> =
        devices.iter().map(|device| describe(device).unwrap_or_else(|error| error.to_string())).collect();
    let text = format!("driver for CUDA {}; {} GPU(s): {}", driver.version_text(), all.len(), all.join(", "));
    finding(Verdict::Fine, "CUDA", text)
}

/// Which GPUs do not reach each other's memory.
fn peers(devices: &[Device]) -> Option<Finding> {
    let pairs = |i: usize| (i + 1..devices.len()).map(move |j| (i, j));
    let apart: Vec<String> = (0..devices.len())
        .flat_map(pairs)
        .filter(|(i, j)| !devices[*i].can_reach(&devices[*j]).unwrap_or(false))
        .map(|(i, j)| format!("{i}-{j}"))
        .collect();
    match (devices.len(), apart.is_empty()) {
        (0 | 1, _) => None,
        (_, true) => Some(finding(Verdict::Fine, "GPU peers", "all GPUs reach each other's memory")),
        (..) => Some(finding(
            Verdict::Note,
            "GPU peers",
            format!(
                "these do not reach each other's memory, and exchange data by NCCL or the host: {}",
                apart.join(", ")
            ),
        )),
    }
}

/// Whether other processes can map a GPU's memory.
fn sharing(device: &Device) -> Finding {
    let shared = Allocation::new(device, 2 << 20).and_then(|memory| share(device, memory.span().address()));
    match shared {
        Ok(Some(_)) if device.has_signals().unwrap_or(false) => {
            finding(Verdict::Fine, "GPU sharing", "ranks of this host reach each other's GPU memory (CUDA IPC)")
        }
        Ok(Some(_)) => finding(
            Verdict::Note,
            "GPU sharing",
            "the driver is too old for streams that wait for each other (CUDA 12 has them): data go by NCCL or the host",
        ),
        Ok(None) => finding(
            Verdict::Note,
            "GPU sharing",
            "memory of GPUs can't be shared here; in a container, run it with --ipc=host and --pid=host",
        ),
        Err(error) => finding(Verdict::Note, "GPU sharing", format!("memory of GPUs can't be shared: {error}")),
    }
}

fn mps(device: &Device) -> Finding {
    match device.is_under_mps() {
        Ok(true) => finding(Verdict::Fine, "MPS", "on: several ranks may share a GPU"),
        _ => finding(Verdict::Fine, "MPS", "off; if ranks are to share a GPU, start it: nvidia-cuda-mps-control -d"),
    }
}

/// NCCL, where ranks would find it.
pub(super) fn nccl() -> Result<Nccl> {
    // As frameworks' own packages bring it.
    let look =
        "import importlib.util as u\ns = u.find_spec('nvidia.nccl')\nprint(list(s.submodule_search_locations)[0])";
    let folder = ask(script::python(), &["-c", look]).map(|folder| PathBuf::from(folder).join("lib"));
    Nccl::open(&Vec::from_iter(folder))
}

/// 22809 is 2.28.9.
fn readable(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_is_told_so_in_one_line() {
        let found = findings();
        assert!(!found.is_empty());
        if driver().is_err() {
            assert!(found.len() == 1 && found[0].text.contains("training runs on CPUs"));
        }
    }

    #[test]
    fn versions_of_nccl_read_as_nvidia_writes_them() {
        assert_eq!(readable(22_809), "2.28.9");
    }
}
