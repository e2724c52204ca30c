//! Known inputs, fed again: what fuzzing learnt reaches every corner of the decoders without fuzzing anew, and what once
//! failed does not fail again. Seeds are in hexadecimal, one a line; `#` begins a remark.

use std::path::Path;

use corro_fuzz::TARGETS;

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(format!("{name}.hex"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(|line| bytes(line, name)).collect()
}

fn bytes(hex: &str, name: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok().filter(|_| pair.len() == 2);
    hex.as_bytes()
        .chunks(2)
        .map(|pair| byte(pair).unwrap_or_else(|| panic!("{name}: {hex} is not hexadecimal")))
        .collect()
}

#[test]
fn every_seed_is_taken_without_a_panic() {
    for target in TARGETS {
        let seeds = seeds(target.name);
        assert!(seeds.len() >= 5, "{} has hardly any seeds: {}", target.name, seeds.len());
        for seed in seeds {
            if let Err(panic) = std::panic::catch_unwind(|| (target.run)(&seed)) {
                eprintln!("{} fails with {seed:02x?}", target.name);
                std::panic::resume_unwind(panic);
            }
        }
    }
}

/// Cut off and changed at every byte, the seeds are inputs as well: decoders see many lengths that lie.
#[test]
fn every_seed_is_taken_when_it_is_cut_off_or_changed() {
    for target in TARGETS {
        for seed in seeds(target.name) {
            for at in 0..seed.len() {
                (target.run)(&seed[..at]);
                let mut changed = seed.clone();
                for to in [0, 1, 0x7f, 0x80, 0xff] {
                    changed[at] = to;
                    (target.run)(&changed);
                }
            }
        }
    }
}
