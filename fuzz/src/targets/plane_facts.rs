//! What members tell each other about themselves, to choose who moves tensors of GPUs: a value or an error, and whatever it
//! says, all members that heard the same choose the same. (Peers have proven the job's secret, but one that is broken, or of
//! another release, must not take the others with it.)

use std::sync::Arc;

use corro_collectives::{Collective, Group};
use corro_core::{DType, Rank, ReduceOp, Result, codec};
use corro_planes::{Facts, Plane, Row, Verdict, Wanted, choose};

/// A row that looks at what it is told.
struct Looking(&'static str);

impl Row for Looking {
    fn name(&self) -> &'static str {
        self.0
    }

    fn describe(&self, facts: &mut Facts, _: Option<usize>) {
        facts.says(self.0, Ok(1));
    }

    fn why_not(&self, _: Wanted, facts: &[Facts]) -> Option<String> {
        let number = facts[0].number(self.0);
        (!facts.iter().all(|f| f.number(self.0) == number)).then(|| "versions differ".to_owned())
    }

    fn open(&self, _: &mut Group, _: &[Rank], _: &[Facts], _: Option<usize>) -> Result<Verdict<Box<dyn Plane>>> {
        Ok(Err("nobody is here".to_owned()))
    }
}

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let (mut facts, mut rest) = (Vec::new(), bytes);
    while let Ok(Some((message, used))) = codec::take::<Facts>(rest, 4096) {
        let again = codec::encode(&message).expect("what was decoded can be encoded");
        assert_eq!(codec::take::<Facts>(&again, usize::MAX).expect("valid").expect("whole").0, message);
        facts.push(message);
        rest = &rest[used..];
    }
    if facts.is_empty() {
        return;
    }
    let rows: Vec<Arc<dyn Row>> = vec![Arc::new(Looking("a")), Arc::new(Looking("b"))];
    let members: Vec<Rank> = Rank::all(facts.len()).collect();
    let wanted = Wanted { collective: Collective::Allreduce, op: Some(ReduceOp::Sum), dtype: DType::F32 };
    let choice = || choose(&rows, &[None, None], &members, &facts, wanted);
    let first = choice();
    assert_eq!(first, choice());
    if let Ok(choice) = first {
        assert!(choice.row.is_none_or(|row| row < rows.len()));
    }
}
