//! The hosts of an elastic job: which may be used, which are out of favour, and where new workers are to be started.
//!
//! Pure. What happens to a host whose workers fail is one rule:
//!
//! * A worker that ended by itself with an error is a *strike* against its host. One that was killed is none: that is what
//!   preemption, an operator or the system's memory look like. And as long as the job works without it, neither is one that
//!   never had a seat (a spare, or one that was to take a lost one's place).
//! * Three strikes within five minutes, or a host that can't be reached: the host is blacklisted. No new worker is started there.
//!   What runs there may stay: one bad accelerator must not cost the other seven, and a job on one host must not die of it.
//! * With a cooldown it comes back after a time that doubles with each blacklisting; without one, never.
//!
//! Until the third strike a lost worker is started again at once, or after a pause if it had not even joined. The pause doubles
//! with each one that did not, up to a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::time::Time;

/// So many strikes ...
const STRIKES: usize = 3;
/// ... within this time blacklist a host.
const STRIKE_TIME: Duration = Duration::from_secs(300);
/// The first pause after a worker that failed before it had joined; it doubles, so often at most.
const PAUSE: Duration = Duration::from_secs(1);
const DOUBLINGS: usize = 6;

/// A host and how many workers it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSlots {
    /// Its name.
    pub name: String,
    /// How many workers it takes.
    pub slots: usize,
}

/// Whether a host is out of favour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blacklisting {
    No,
    Until(Time),
    ForEver,
}

#[derive(Debug)]
struct Record {
    slots: usize,
    /// Its place in the last list; `None` if it was not in there.
    place: Option<usize>,
    strikes: Vec<Time>,
    /// When workers failed before they had joined.
    failed_to_join: Vec<Time>,
    /// No worker is started before this.
    pause_until: Time,
    blacklisting: Blacklisting,
    /// How often it was blacklisted.
    times: u32,
    /// Since when it is in the list.
    since: Time,
}

/// The hosts of a job.
#[derive(Debug, Default)]
pub(crate) struct Fleet {
    hosts: BTreeMap<String, Record>,
    cooldown: Option<(Duration, Duration)>,
    /// For the jitter of cooldowns.
    seed: u64,
}

impl Fleet {
    pub(crate) fn new(cooldown: Option<(Duration, Duration)>, seed: u64) -> Self {
        Self { hosts: BTreeMap::new(), cooldown, seed: seed | 1 }
    }

    /// Takes a new list of hosts.
    pub(crate) fn see(&mut self, list: &[HostSlots], now: Time) {
        for record in self.hosts.values_mut() {
            record.place = None;
        }
        // Hosts that were there before keep their order, so that ranks do not move about.
        for (place, host) in list.iter().enumerate() {
            let record = self.hosts.entry(host.name.clone()).or_insert_with(|| Record {
                slots: 0,
                place: None,
                strikes: Vec::new(),
                failed_to_join: Vec::new(),
                pause_until: Duration::ZERO,
                blacklisting: Blacklisting::No,
                times: 0,
                since: now,
            });
            record.slots = host.slots;
            record.place = Some(place);
        }
    }

    /// How many workers `host` takes: none if it is not in the list.
    pub(crate) fn room(&self, host: &str) -> usize {
        self.hosts.get(host).filter(|h| h.place.is_some()).map_or(0, |h| h.slots)
    }

    /// Whether it is in the last list.
    pub(crate) fn is_listed(&self, host: &str) -> bool {
        self.hosts.get(host).is_some_and(|h| h.place.is_some())
    }

    /// All slots of hosts on which workers may be started.
    pub(crate) fn usable_slots(&self) -> usize {
        self.hosts.values().filter(|h| h.place.is_some() && h.blacklisting == Blacklisting::No).map(|h| h.slots).sum()
    }

    /// Whether a blacklisted host will come back by itself.
    pub(crate) fn some_cool_down(&self) -> bool {
        self.hosts.values().any(|h| h.place.is_some() && matches!(h.blacklisting, Blacklisting::Until(_)))
    }

    /// A worker ended on `host` before it had joined: the next one is not started at once.
    pub(crate) fn failed_to_join(&mut self, host: &str, now: Time) {
        let Some(record) = self.hosts.get_mut(host) else { return };
        record.failed_to_join.retain(|at| now.saturating_sub(*at) < STRIKE_TIME);
        record.failed_to_join.push(now);
        let doublings = (record.failed_to_join.len() - 1).min(DOUBLINGS);
        record.pause_until = record.pause_until.max(now + PAUSE * (1 << doublings));
    }

    /// A worker failed on `host`, which counts against it. Says so if the host is blacklisted for it.
    pub(crate) fn strike(&mut self, host: &str, now: Time) -> Option<String> {
        let record = self.hosts.get_mut(host)?;
        record.strikes.retain(|at| now.saturating_sub(*at) < STRIKE_TIME);
        record.strikes.push(now);
        let count = record.strikes.len();
        if count < STRIKES || record.blacklisting != Blacklisting::No {
            return None;
        }
        Some(self.blacklist(host, &format!("{count} of its workers have failed"), now))
    }

    /// Starts no more workers on `host` for now, or for ever.
    pub(crate) fn blacklist(&mut self, host: &str, why: &str, now: Time) -> String {
        let jitter = self.random();
        let Some(record) = self.hosts.get_mut(host) else { return String::new() };
        record.strikes.clear();
        record.times += 1;
        let until = self.cooldown.map(|(low, high)| {
            // Horovod's: min * 2^count + U(0,1) * min, within the range; the first delay is already 2 * min.
            let length = low.as_secs_f64() * (2f64.powi(record.times.min(20) as i32) + jitter);
            now + Duration::from_secs_f64(length.clamp(low.as_secs_f64(), high.as_secs_f64()))
        });
        record.blacklisting = until.map_or(Blacklisting::ForEver, Blacklisting::Until);
        let how_long = match until {
            Some(until) => format!("for {} s", until.saturating_sub(now).as_secs().max(1)),
            None => "for the rest of the job (--blacklist-cooldown-range would give it another chance)".into(),
        };
        format!("host {host} is blacklisted {how_long}: {why}")
    }

    /// Takes hosts back whose time is over.
    pub(crate) fn cool_down(&mut self, now: Time) {
        for record in self.hosts.values_mut() {
            if matches!(record.blacklisting, Blacklisting::Until(until) if now >= until) {
                record.blacklisting = Blacklisting::No;
            }
        }
    }

    /// Where to start workers: `live` is how many each host has, `target` how many there should be with a seat, and
    /// `spares` how many more.
    pub(crate) fn starts(&self, live: &BTreeMap<&str, usize>, target: usize, spares: usize, now: Time) -> Vec<String> {
        let mut hosts: Vec<(&String, &Record)> =
            self.hosts.iter().filter(|(_, h)| h.place.is_some() && h.blacklisting == Blacklisting::No).collect();
        hosts.sort_by_key(|(name, h)| (h.since, h.place, *name));
        let living = |name: &str| live.get(name).copied().unwrap_or(0);
        let total: usize = live.values().sum();
        let mut starts = Vec::new();
        let mut missing = (target + spares).saturating_sub(total);
        let may_start = |h: &Record| now >= h.pause_until;
        // Seats first, in the order of hosts; then spares, which need no slot of their own, spread over the hosts.
        for (name, host) in &hosts {
            let free = host.slots.saturating_sub(living(name)).min(missing);
            let seats = target.saturating_sub(total + starts.len()).min(free);
            if may_start(host) {
                starts.extend(std::iter::repeat_n((*name).clone(), seats));
            }
            missing -= seats;
        }
        let wanted = |at: usize| spares / hosts.len() + usize::from(at < spares % hosts.len());
        for (at, (name, host)) in hosts.iter().enumerate() {
            let here = living(name) + starts.iter().filter(|s| s == name).count();
            let lacking = (host.slots + wanted(at)).saturating_sub(here).min(wanted(at)).min(missing);
            if here >= host.slots.min(target) && may_start(host) {
                starts.extend(std::iter::repeat_n((*name).clone(), lacking));
                missing -= lacking;
            }
        }
        starts
    }

    fn random(&mut self) -> f64 {
        // Good enough to keep hosts from coming back all at once.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn fleet(hosts: &[(&str, usize)], cooldown: Option<(Duration, Duration)>) -> Fleet {
        let mut fleet = Fleet::new(cooldown, 7);
        fleet.see(&list(hosts), Duration::ZERO);
        fleet
    }

    fn list(hosts: &[(&str, usize)]) -> Vec<HostSlots> {
        hosts.iter().map(|(name, slots)| HostSlots { name: (*name).into(), slots: *slots }).collect()
    }

    #[test]
    fn workers_go_where_slots_are_and_spares_beside_them() {
        let fleet = fleet(&[("b", 2), ("a", 2)], None);
        let starts = |live: &[(&str, usize)], target, spares| {
            fleet.starts(&live.iter().copied().collect(), target, spares, S).join(" ")
        };
        assert_eq!(starts(&[], 4, 0), "b b a a");
        assert_eq!(starts(&[], 3, 0), "b b a");
        assert_eq!(starts(&[("b", 1), ("a", 2)], 4, 0), "b");
        assert_eq!(starts(&[("b", 2), ("a", 2)], 4, 1), "b");
        assert_eq!(starts(&[("b", 3), ("a", 2)], 4, 1), "");
        assert_eq!(starts(&[("b", 3), ("a", 2)], 4, 2), "a");
        assert_eq!(starts(&[], 4, 2), "b b a a b a");
    }

    #[test]
    fn three_strikes_and_a_cooldown_that_doubles() {
        let mut fleet = fleet(&[("a", 2)], Some((10 * S, 100 * S)));
        assert_eq!(fleet.strike("a", S), None);
        assert_eq!(fleet.strike("a", 2 * S), None);
        let text = fleet.strike("a", 3 * S).unwrap();
        assert!(text.starts_with("host a is blacklisted for 2"), "{text}");
        assert_eq!(fleet.usable_slots(), 0);
        assert!(fleet.some_cool_down());
        fleet.cool_down(40 * S);
        assert_eq!(fleet.usable_slots(), 2);
        let text = fleet.blacklist("a", "x", 40 * S);
        assert!(text.starts_with("host a is blacklisted for 4"), "{text}");
        fleet.cool_down(400 * S);
        for _ in 0..9 {
            fleet.blacklist("a", "x", 400 * S);
        }
        assert_eq!(fleet.hosts["a"].blacklisting, Blacklisting::Until(500 * S));
    }

    #[test]
    fn strikes_are_forgotten() {
        let mut fleet = fleet(&[("a", 1)], None);
        fleet.strike("a", S);
        fleet.strike("a", 2 * S);
        assert_eq!(fleet.strike("a", 400 * S), None);
        assert_eq!(fleet.usable_slots(), 1);
    }

    #[test]
    fn workers_that_do_not_join_cost_a_pause_that_doubles_and_nothing_else() {
        let mut fleet = fleet(&[("a", 1)], None);
        let mut now = S;
        for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
            fleet.failed_to_join("a", now);
            assert!(
                fleet.starts(&BTreeMap::new(), 1, 0, now + S.mul_f64(f64::from(pause) - 0.5)).is_empty(),
                "{pause}"
            );
            now += pause * S;
            assert_eq!(fleet.starts(&BTreeMap::new(), 1, 0, now), ["a"], "{pause}");
        }
        assert_eq!(fleet.usable_slots(), 1);
    }

    #[test]
    fn hosts_come_and_go_and_old_ones_come_first() {
        let mut fleet = fleet(&[("m", 1)], None);
        fleet.see(&list(&[("a", 1), ("m", 1)]), S);
        assert_eq!(fleet.starts(&BTreeMap::new(), 2, 0, S), ["m", "a"]);
        fleet.see(&list(&[("a", 1)]), S);
        assert_eq!((fleet.room("m"), fleet.room("a")), (0, 1));
    }
}
