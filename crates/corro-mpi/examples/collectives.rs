//! Runs every collective on every element type under an `mpiexec`, and checks the results. The tests start it with each library.
//!
//! ```text
//! CORRO_MPI_LIBRARY=.../libmpi.so.40 mpiexec -n 3 collectives
//! ```

use std::time::Duration;

use corro_core::{DType, Deadline, Error, ReduceOp, Result};
use corro_mpi::{Communicator, Mpi, Patience};

/// Small whole numbers, as elements of any type.
fn elements(dtype: DType, numbers: &[u8]) -> Vec<u8> {
    let floats: Vec<u8> = numbers.iter().flat_map(|n| f64::from(*n).to_le_bytes()).collect();
    let mut bytes = vec![0; numbers.len() * dtype.size()];
    corro_kernels::cast(DType::F64, dtype, &floats, &mut bytes);
    bytes
}

fn expect(what: &str, found: &[u8], wanted: &[u8]) -> Result<()> {
    if found == wanted { Ok(()) } else { Err(Error::Bug(format!("{what} gave {found:?} in place of {wanted:?}"))) }
}

fn every_collective(all: &Communicator) -> Result<()> {
    let patience = Patience { deadline: Deadline::after(Duration::from_secs(60)), stop: &|| None };
    let (me, n) = (all.rank(), all.size());
    all.barrier(&patience)?;
    for dtype in DType::ALL {
        let limit = if dtype == DType::Bool { 2 } else { 200 };
        for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product] {
            let of = |rank: usize| elements(dtype, &[0, 1, (rank % 2) as u8, (limit - 1 - rank % limit) as u8]);
            let mut wanted = of(0);
            (1..n).for_each(|rank| corro_kernels::reduce(op, dtype, &mut wanted, &of(rank)));
            let what = format!("{op} of {dtype}");
            let mut apart = vec![0; wanted.len()];
            all.allreduce((dtype, op), Some((&of(me)).into()), (&mut apart).into(), &patience)?;
            expect(&what, &apart, &wanted)?;
            let mut in_place = of(me);
            all.allreduce((dtype, op), None, (&mut in_place).into(), &patience)?;
            expect(&what, &in_place, &wanted)?;
            // Everybody has one element but the last, who has what is left of four for each.
            let shares: Vec<usize> = (0..n).map(|rank| if rank + 1 == n { 4 * n - (n - 1) } else { 1 }).collect();
            let input: Vec<u8> = of(me).repeat(n);
            let mut share = vec![0; shares[me] * dtype.size()];
            all.reduce_scatter((dtype, op), (&input).into(), &shares, (&mut share).into(), &patience)?;
            let begin = shares[..me].iter().sum::<usize>() * dtype.size();
            expect(&format!("scattered {what}"), &share, &wanted.repeat(n)[begin..begin + share.len()])?;
        }
    }
    let mut bytes = if me == n - 1 { vec![7; 1000] } else { vec![0; 1000] };
    all.broadcast((&mut bytes).into(), n - 1, &patience)?;
    expect("broadcast", &bytes, &[7; 1000])?;
    // Rank r brings r * 3 bytes, so rank 0 none.
    let counts: Vec<usize> = (0..n).map(|rank| rank * 3).collect();
    let mut gathered = vec![0; counts.iter().sum()];
    let mine = vec![me as u8; counts[me]];
    all.allgather((&mine).into(), &counts, (&mut gathered).into(), &patience)?;
    let wanted: Vec<u8> = (0..n).flat_map(|rank| vec![rank as u8; counts[rank]]).collect();
    expect("allgather", &gathered, &wanted)?;
    // From a to b go a + 2 b bytes.
    let sent: Vec<usize> = (0..n).map(|to| me + 2 * to).collect();
    let received: Vec<usize> = (0..n).map(|from| from + 2 * me).collect();
    let mut output = vec![0; received.iter().sum()];
    let longest = 3 * (n - 1);
    let mine = vec![me as u8; sent.iter().sum()];
    all.alltoall(((&mine).into(), &sent), ((&mut output).into(), &received), longest, &patience)?;
    let wanted: Vec<u8> = (0..n).flat_map(|from| vec![from as u8; received[from]]).collect();
    expect("alltoall", &output, &wanted)
}

fn main() -> Result<()> {
    let mpi = Mpi::open(&[])?;
    let threads = mpi.start()?;
    let world = Communicator::world(&mpi)?;
    every_collective(&world)?;
    // Backwards, and without rank 0.
    let rest: Vec<usize> = (1..world.size()).rev().collect();
    if world.rank() > 0 {
        let some = world.of_members(&rest)?;
        assert_eq!(some.numbers_in(&world)?, rest.iter().map(|r| Some(*r)).collect::<Vec<_>>());
        every_collective(&some)?;
    }
    let (rank, size) = (world.rank(), world.size());
    let (interface, version, found) = (mpi.interface(), mpi.version()?, mpi.found());
    println!("rank {rank} of {size}: all right; interface: {interface}; {threads}; {version}; {found}");
    Ok(())
}
