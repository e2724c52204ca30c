//! A driver and a management library of NVIDIA's that are none, for tests on hosts without a GPU: they know two GPUs, and say that
//! this process uses the second.

use std::path::{Path, PathBuf};
use std::process::Command;

/// How busy that GPU says it is, in percent.
pub const LOAD: u32 = 73;
/// Bytes of its memory that are used.
pub const USED: u64 = 5 << 30;
/// Bytes there are.
pub const MEMORY: u64 = 80 << 30;

/// Where they are. Their names are those of the real ones, so that a loader that looks in their folder takes them.
#[derive(Debug)]
pub struct FakeGpu {
    /// In place of `libcuda.so.1`.
    pub driver: PathBuf,
    /// In place of `libnvidia-ml.so.1`.
    pub nvml: PathBuf,
}

const DRIVER: &str = r"
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = 10 + ordinal; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = device == 11; return 0; }
int cuDeviceGetUuid(char *uuid, int device) { for (int i = 0; i < 16; i++) uuid[i] = device; return 0; }
";

const NVML: &str = r#"
#include <string.h>
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 6 ? "Not Found" : "Unknown Error"; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (strcmp(uuid, "GPU-0b0b0b0b-0b0b-0b0b-0b0b-0b0b0b0b0b0b")) return 6;
    *device = (void *)11;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, unsigned *rates) {
    if (device != (void *)11) return 6;
    rates[0] = LOAD; rates[1] = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) {
    if (device != (void *)11) return 6;
    memory[0] = MEMORY; memory[1] = MEMORY - USED; memory[2] = USED;
    return 0;
}
"#;

/// Builds both in this folder. `None`: there is no C compiler.
pub fn build(folder: &Path) -> Option<FakeGpu> {
    Command::new("cc").arg("--version").output().ok()?;
    let library = |name: &str, source: &str| {
        let (code, path) = (folder.join(format!("{name}.c")), folder.join(name));
        std::fs::write(&code, source).expect("writing C");
        let numbers = [format!("-DLOAD={LOAD}"), format!("-DUSED={USED}ull"), format!("-DMEMORY={MEMORY}ull")];
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", &format!("-Wl,-soname,{name}"), "-o"])
            .args([&path, &code])
            .args(numbers)
            .output()
            .expect("running cc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        path
    };
    Some(FakeGpu { driver: library("libcuda.so.1", DRIVER), nvml: library("libnvidia-ml.so.1", NVML) })
}
