//! Where a simulated job begins: its hosts, its rules and how much goes wrong, all drawn from the seed.

use std::time::Duration;

use corro_core::random::Random;

use crate::fleet::HostSlots;
use crate::machine::Rules;

/// A job before it begins.
pub(super) struct Setting {
    pub(super) hosts: Vec<HostSlots>,
    pub(super) rules: Rules,
    /// How many things go wrong.
    pub(super) faults: u64,
    /// How many steps of training are the whole work.
    pub(super) steps: u64,
}

impl Setting {
    pub(super) fn draw(random: &mut Random, seed: u64) -> Self {
        let supply = !random.one_in(4);
        let hosts = draw_hosts(random);
        let rules = draw_rules(random, &hosts, supply, seed);
        let faults = random.below_u64(9);
        let steps = random.between(20, 400);
        Self { hosts, rules, faults, steps }
    }
}

fn draw_hosts(random: &mut Random) -> Vec<HostSlots> {
    let count = random.between(1, 3);
    (0..count).map(|at| HostSlots { name: format!("h{at}"), slots: random.between(1, 3) as usize }).collect()
}

/// `supply`: a launcher starts processes; otherwise a scheduler does, and always as many.
fn draw_rules(random: &mut Random, hosts: &[HostSlots], supply: bool, seed: u64) -> Rules {
    let slots: usize = hosts.iter().map(|h| h.slots).sum();
    let start = random.between(1, slots as u64) as usize;
    let min = random.between(1, start as u64) as usize;
    let max = if random.one_in(2) { usize::MAX } else { start + random.below_u64(3) as usize };
    let cooldown = random.one_in(2).then_some((Duration::from_secs(2), Duration::from_secs(20)));
    Rules {
        start,
        min,
        max: if supply { max } else { start },
        spares: if supply && random.one_in(3) { random.between(1, 2) as usize } else { 0 },
        supply,
        hosts_change: supply && random.one_in(2),
        patience: Duration::from_secs(60),
        silence: Duration::from_secs(10),
        return_time: Duration::from_secs(20),
        suspect_time: Duration::from_secs(3),
        reconnect_time: Duration::from_secs(5),
        gather: Duration::from_secs(2),
        reset_limit: (supply && random.one_in(10)).then(|| random.below_u64(6)),
        cooldown: cooldown.filter(|_| supply),
        first_epoch: 1,
        seed,
    }
}
