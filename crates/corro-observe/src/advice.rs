//! What to do about a job that could be faster: a table of rules, each a question to what is known of the job. Pure.

use serde::Serialize;

use crate::story::Story;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Which rule says so.
    pub rule: &'static str,
    /// What is seen, and what to do.
    pub text: String,
}

/// What rules ask.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The ranks that have taken steps.
    pub ranks: Vec<RankFacts>,
    /// Interfaces: host, name, bits a second it says it can do, the most it has carried.
    pub links: Vec<(String, String, u64, f64)>,
    /// How many hosts there are.
    pub hosts: usize,
}

/// What is known of a rank.
#[derive(Clone, Debug, Default)]
pub struct RankFacts {
    /// Which.
    pub rank: u32,
    /// Where.
    pub host: String,
    /// Steps so far.
    pub steps: u64,
    /// Milliseconds a step, and of those: computing, communication, waiting.
    pub step: f64,
    /// Milliseconds.
    pub computing: f64,
    /// Milliseconds.
    pub communication: f64,
    /// Milliseconds.
    pub waiting: f64,
    /// The share of steps in which it came last.
    pub last: f64,
    /// Tensors in a collective, and bytes.
    pub fusion: f64,
    /// Collectives in a step.
    pub batches: f64,
    /// Megabytes in a step.
    pub megabytes: f64,
    /// How ranks agree.
    pub gear: String,
    /// Plans left so far.
    pub plans_left: u64,
    /// Whether nothing says how much of the communication is hidden.
    pub hidden: bool,
}

/// A rule: its name, and what it says if it applies.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub says: fn(&Facts) -> Option<String>,
}

/// The rules, the gravest first.
pub const RULES: [Rule; 6] = [
    Rule { name: "slow rank", says: slow_rank },
    Rule { name: "slow link", says: slow_link },
    Rule { name: "much communication", says: much_communication },
    Rule { name: "small tensors", says: small_tensors },
    Rule { name: "plans left", says: plans_left },
    Rule { name: "uneven work", says: uneven_work },
];

/// So many steps must have been seen: the first are never like the others.
const STEPS: u64 = 20;

/// What the rules say about a job.
pub fn on(story: &Story) -> Vec<Advice> {
    apply(&facts(story))
}

/// What the rules say about these facts.
pub fn apply(facts: &Facts) -> Vec<Advice> {
    if facts.ranks.iter().any(|rank| rank.steps < STEPS) || facts.ranks.is_empty() {
        return Vec::new();
    }
    RULES.iter().filter_map(|rule| Some(Advice { rule: rule.name, text: (rule.says)(facts)? })).collect()
}

fn facts(story: &Story) -> Facts {
    let mut facts = Facts::default();
    for (rank, member, share) in story.shares() {
        let ms = |nanos: u64| nanos as f64 / share.steps as f64 / 1e6;
        let totals = &member.note.totals;
        let steps = member.step.max(1) as f64;
        facts.ranks.push(RankFacts {
            rank,
            host: member.host.clone(),
            steps: share.steps,
            step: ms(share.time),
            computing: ms(share.computing),
            communication: ms(share.communication),
            waiting: ms(share.waiting),
            last: share.last as f64 / share.steps as f64,
            fusion: totals.tensors as f64 / totals.batches.max(1) as f64,
            batches: totals.batches as f64 / steps,
            megabytes: totals.bytes as f64 / steps / 1e6,
            gear: member.note.gear.clone(),
            plans_left: totals.plans_left,
            hidden: member.note.hidden,
        });
        for network in &member.note.network {
            let most = member.carried.iter().find(|(name, _)| *name == network.name).map_or(0.0, |(_, bits)| *bits);
            facts.links.push((member.host.clone(), network.name.clone(), network.speed, most));
        }
    }
    let mut hosts: Vec<&str> = facts.ranks.iter().map(|rank| rank.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    facts.hosts = hosts.len();
    facts
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn mean(facts: &Facts, of: fn(&RankFacts) -> f64) -> f64 {
    facts.ranks.iter().map(of).sum::<f64>() / facts.ranks.len().max(1) as f64
}

/// The rank that computes longest, and how much longer than the others do.
fn slowest(facts: &Facts) -> Option<(&RankFacts, f64)> {
    let slow = facts.ranks.iter().max_by(|a, b| a.computing.total_cmp(&b.computing))?;
    let others: Vec<f64> = facts.ranks.iter().filter(|r| r.rank != slow.rank).map(|r| r.computing).collect();
    let usual = (!others.is_empty()).then(|| median(others))?;
    Some((slow, slow.computing / usual.max(1e-9) - 1.0))
}

fn slow_rank(facts: &Facts) -> Option<String> {
    let (slow, slower) = slowest(facts)?;
    let lost = mean(facts, |rank| rank.waiting);
    if slower < 0.08 || slow.last < 0.6 || lost < 0.03 * slow.step {
        return None;
    }
    Some(format!(
        "rank {} on {} computes {:.0} % longer than the others ({:.1} ms a step), and all wait for it: {:.0} % of their time. \
         Its processor or GPU is throttled or shared with others, or its data takes longer to load.",
        slow.rank,
        slow.host,
        slower * 100.0,
        slow.computing,
        100.0 * lost / slow.step.max(1e-9)
    ))
}

fn uneven_work(facts: &Facts) -> Option<String> {
    let lost = mean(facts, |rank| rank.waiting) / mean(facts, |rank| rank.step).max(1e-9);
    if lost < 0.1 || slow_rank(facts).is_some() {
        return None;
    }
    Some(format!(
        "ranks wait {:.0} % of their time for one another, and it is now this rank and now that one that comes last: their \
         batches take unequally long. Make them alike (sort by length, pad, or drop the last one), or give each rank its own cores.",
        lost * 100.0
    ))
}

fn slow_link(facts: &Facts) -> Option<String> {
    let share = mean(facts, |rank| rank.communication) / mean(facts, |rank| rank.step).max(1e-9);
    if facts.hosts < 2 || share < 0.15 {
        return None;
    }
    // Each host's busiest interface is the one that the job uses; the slowest of them holds up all.
    let mut busiest: Vec<&(String, String, u64, f64)> = Vec::new();
    for link in &facts.links {
        match busiest.iter_mut().find(|known| known.0 == link.0) {
            Some(known) if known.3 < link.3 => *known = link,
            Some(_) => {}
            None => busiest.push(link),
        }
    }
    let mut hosts: Vec<&str> = busiest.iter().map(|link| link.0.as_str()).collect();
    hosts.sort_unstable();
    let (host, name, speed, carried) = busiest.iter().min_by(|a, b| a.3.total_cmp(&b.3))?;
    let most = busiest.iter().map(|link| link.3).fold(0.0, f64::max);
    // Ranks pass bytes round in step, so a slow link slows the others down: then it can't be told from them.
    let which = if most > 1.5 * carried || hosts.len() > 4 {
        format!("the link of {host} ({name})")
    } else {
        format!("the network between {}", hosts.join(" and "))
    };
    let can = if *speed > 0 { format!(" of the {} it says it can do", bits(*speed as f64)) } else { String::new() };
    Some(format!(
        "communication takes {:.0} % of a step, and {which} has carried {} at most{can}. Send less: \
         compression=hvd.Compression.fp16 halves the bytes, and backward_passes_per_step=4 sends a quarter as often. Or use a \
         faster network (--network-interfaces).",
        share * 100.0,
        bits(*carried),
    ))
}

fn much_communication(facts: &Facts) -> Option<String> {
    let share = mean(facts, |rank| rank.communication) / mean(facts, |rank| rank.step).max(1e-9);
    let bound = if facts.ranks.iter().any(|rank| rank.hidden) { "up to " } else { "" };
    if facts.hosts > 1 || share < 0.25 || facts.ranks.len() < 2 {
        return None;
    }
    Some(format!(
        "communication takes {bound}{:.0} % of a step of {:.1} ms, for {}. A larger batch on each rank computes longer for the \
         same bytes; compression=hvd.Compression.fp16 halves them.",
        share * 100.0,
        mean(facts, |rank| rank.step),
        size(mean(facts, |rank| rank.megabytes))
    ))
}

fn small_tensors(facts: &Facts) -> Option<String> {
    let (batches, megabytes) = (mean(facts, |rank| rank.batches), mean(facts, |rank| rank.megabytes));
    let share = mean(facts, |rank| rank.communication) / mean(facts, |rank| rank.step).max(1e-9);
    if batches < 50.0 || megabytes / batches > 0.1 || share < 0.1 {
        return None;
    }
    Some(format!(
        "a step runs {batches:.0} collectives of {:.0} KB on average. Submit tensors together (hvd.grouped_allreduce, \
         groups=), or asynchronously so that they can run as one.",
        1000.0 * megabytes / batches
    ))
}

fn plans_left(facts: &Facts) -> Option<String> {
    let often = facts.ranks.iter().find(|rank| rank.plans_left > 10 && rank.plans_left * 50 > rank.steps)?;
    Some(format!(
        "steps do not repeat themselves: rank {} has left its plan {} times in {} steps. The log says why each time \
         (CORRO_LOG_LEVEL=info); mostly tensors whose shape or number changes from step to step.",
        often.rank, often.plans_left, often.steps
    ))
}

/// "2.5 MB".
fn size(megabytes: f64) -> String {
    if megabytes < 1.0 { format!("{:.1} KB", megabytes * 1000.0) } else { format!("{megabytes:.1} MB") }
}

/// "940 Mbit/s".
pub fn bits(per_second: f64) -> String {
    match per_second {
        b if b >= 1e9 => format!("{:.1} Gbit/s", b / 1e9),
        b if b >= 1e6 => format!("{:.0} Mbit/s", b / 1e6),
        b => format!("{:.0} kbit/s", b / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32, computing: f64, communication: f64, waiting: f64) -> RankFacts {
        let step = computing + communication + waiting;
        let host = format!("node{}", rank / 2);
        RankFacts {
            rank,
            host,
            steps: 100,
            step,
            computing,
            communication,
            waiting,
            megabytes: 10.0,
            batches: 4.0,
            ..RankFacts::default()
        }
    }

    fn names(facts: &Facts) -> Vec<&'static str> {
        apply(facts).into_iter().map(|advice| advice.rule).collect()
    }

    #[test]
    fn a_good_job_needs_no_advice() {
        let ranks = (0..4).map(|n| rank(n, 95.0, 4.0, 1.0)).collect();
        assert_eq!(names(&Facts { ranks, hosts: 2, ..Facts::default() }), [""; 0]);
    }

    #[test]
    fn a_rank_slower_by_a_fifth_is_named_with_its_host() {
        let mut ranks: Vec<RankFacts> = (0..4).map(|n| rank(n, 80.0, 4.0, 16.0)).collect();
        ranks[3] = RankFacts { last: 0.97, ..rank(3, 96.0, 4.0, 0.0) };
        let advice = apply(&Facts { ranks, hosts: 2, ..Facts::default() });
        assert_eq!(advice.len(), 1);
        assert!(
            advice[0].text.starts_with("rank 3 on node1 computes 20 % longer than the others (96.0 ms a step)"),
            "{advice:?}"
        );
    }

    #[test]
    fn ranks_that_take_turns_at_being_late_are_no_slow_rank() {
        let ranks: Vec<RankFacts> = (0..4).map(|n| RankFacts { last: 0.25, ..rank(n, 80.0, 4.0, 16.0) }).collect();
        assert_eq!(names(&Facts { ranks, hosts: 1, ..Facts::default() }), ["uneven work"]);
    }

    #[test]
    fn a_slow_link_is_named_with_what_it_carried() {
        let ranks = (0..4).map(|n| rank(n, 50.0, 50.0, 0.0)).collect();
        let link = |host: &str, carried: f64| (host.to_owned(), "eth0".to_owned(), 1_000_000_000, carried);
        let facts = Facts { ranks, hosts: 2, links: vec![link("node0", 320e6), link("node1", 94e6)] };
        let advice = apply(&facts);
        assert_eq!(advice[0].rule, "slow link");
        assert!(
            advice[0].text.contains("link of node1 (eth0) has carried 94 Mbit/s at most of the 1.0 Gbit/s"),
            "{advice:?}"
        );
        let links = vec![link("node0", 97e6), link("node1", 94e6)];
        let advice = apply(&Facts { links, ..facts });
        assert!(advice[0].text.contains("the network between node0 and node1 has carried 94 Mbit/s"), "{advice:?}");
    }

    #[test]
    fn the_other_rules_apply_where_they_should() {
        let one_host = |ranks: Vec<RankFacts>| Facts { ranks, hosts: 1, ..Facts::default() };
        assert_eq!(names(&one_host((0..2).map(|n| rank(n, 50.0, 50.0, 0.0)).collect())), ["much communication"]);
        let many = |n| RankFacts { batches: 200.0, megabytes: 1.0, ..rank(n, 80.0, 20.0, 0.0) };
        assert_eq!(names(&one_host((0..2).map(many).collect())), ["small tensors"]);
        let leaves = |n| RankFacts { plans_left: 40, ..rank(n, 98.0, 2.0, 0.0) };
        assert_eq!(names(&one_host((0..2).map(leaves).collect())), ["plans left"]);
        let early = |n| RankFacts { steps: 5, ..rank(n, 50.0, 50.0, 0.0) };
        assert_eq!(names(&one_host((0..2).map(early).collect())), [""; 0], "nothing is said too early");
    }
}
