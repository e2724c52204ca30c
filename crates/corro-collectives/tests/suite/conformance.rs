//! Every algorithm, over every transport, against a naive model: dtypes, ops, ranks 1 to 17, lengths 0, 1, odd and
//! large, uneven splits, subsets. A new algorithm or transport is one line in the tables below.
//!
//! With 2 and 3 ranks the whole product of dtypes, ops, algorithms and lengths is run. With any other number, rows are
//! chosen such that every two values of different columns meet: what goes wrong with five ranks and not with three hardly ever takes three values at
//! once. `make deep` runs all products (`CORRO_TEST_THOROUGH=1`).
//!
//! Values are small integers (exact in every dtype), so that the order of additions can't hide a mistake; rounding has
//! tests of its own in `numerics.rs`. Replay one case by the name and numbers its message shows.

use corro_collectives::{Algorithm, Collective, DType, Group, ReduceOp, Reduction, Tensor, Topology};
use corro_testing::{pairs, thorough};
use corro_transport::Settings;

use crate::support;
use crate::support::{Transport, model, on_ranks, sample, with_fabrics};

const ALGORITHMS: [Algorithm; 5] =
    [Algorithm::Direct, Algorithm::Ring, Algorithm::HalvingDoubling, Algorithm::Tree, Algorithm::Hierarchical];

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// Whether this case runs `algorithm` itself rather than what the table would choose instead.
fn applies(algorithm: Algorithm, collective: Collective, group: &Group) -> bool {
    group.size() == 1 || algorithm.fits(collective, group.topology())
}

/// Rows of a table with these columns: all there are for few ranks, else such that any two values meet.
fn rows(ranks: usize, columns: &[usize], skip: impl Fn((usize, usize), (usize, usize)) -> bool) -> Vec<Vec<usize>> {
    if !matches!(ranks, 2 | 3) && !thorough() {
        return pairs(columns, skip);
    }
    let mut rows = vec![Vec::new()];
    for &values in columns {
        rows = rows.iter().flat_map(|row| (0..values).map(move |value| [&row[..], &[value]].concat())).collect();
    }
    let possible = |row: &Vec<usize>| {
        let cells = || row.iter().copied().enumerate();
        !cells().any(|a| cells().any(|b| skip(a, b)))
    };
    rows.retain(possible);
    rows
}

/// All dtypes and ops on one transport with few elements.
fn allreduce_table(transport: Transport, ranks: &[usize], lengths: &'static [usize]) {
    for &n in ranks {
        on_ranks(transport, n, move |group| {
            let algorithms: Vec<Algorithm> =
                ALGORITHMS.into_iter().filter(|a| applies(*a, Collective::Allreduce, group)).collect();
            let columns = [algorithms.len(), DType::ALL.len(), OPS.len(), lengths.len()];
            let unsupported =
                |a: (usize, usize), b: (usize, usize)| (a.0, b.0) == (1, 2) && !OPS[b.1].supports(DType::ALL[a.1]);
            for row in rows(n, &columns, unsupported) {
                let (algorithm, dtype, op, len) =
                    (algorithms[row[0]], DType::ALL[row[1]], OPS[row[2]], lengths[row[3]]);
                let case = format!("{transport:?} {algorithm:?} {dtype} {op} n={n} len={len}");
                group.force(Some(algorithm));
                let mut data = sample(dtype, group.rank(), len);
                group.allreduce_bytes(&mut data, &Reduction::new(dtype, op)).expect(&case);
                assert!(model::same(dtype, &data, &model::allreduce(dtype, op, n, len)), "{case}");
            }
        });
    }
}

/// One dtype and op with long data.
fn allreduce_long(transport: Transport, ranks: &[usize], lengths: &'static [usize]) {
    for &n in ranks {
        on_ranks(transport, n, move |group| {
            for algorithm in ALGORITHMS {
                if !applies(algorithm, Collective::Allreduce, group) {
                    continue;
                }
                group.force(Some(algorithm));
                for &len in lengths {
                    for dtype in [DType::F32, DType::U8, DType::BF16] {
                        let case = format!("{transport:?} {algorithm:?} {dtype} n={n} len={len}");
                        let mut data = sample(dtype, group.rank(), len);
                        group.allreduce_bytes(&mut data, &Reduction::new(dtype, ReduceOp::Sum)).expect(&case);
                        assert!(model::same(dtype, &data, &model::allreduce(dtype, ReduceOp::Sum, n, len)), "{case}");
                    }
                }
            }
        });
    }
}

/// The collectives that only move bytes, and reducescatter. Few enough to run the whole product with any number of ranks.
fn movers(transport: Transport, ranks: &[usize], lengths: &'static [usize]) {
    for &n in ranks {
        on_ranks(transport, n, move |group| {
            for algorithm in Algorithm::ALL {
                group.force(Some(algorithm));
                for collective in Collective::ALL {
                    if !applies(algorithm, collective, group) {
                        continue;
                    }
                    for &len in lengths {
                        let case = format!("{transport:?} {algorithm:?} {collective:?} n={n} len={len}");
                        move_once(group, collective, len, &case);
                    }
                }
            }
        });
    }
}

fn move_once(group: &mut Group, collective: Collective, len: usize, case: &str) {
    let (me, n) = (group.rank(), group.size());
    match collective {
        Collective::Broadcast => {
            for root in [0, n / 2, n - 1] {
                let mut data = sample(DType::I32, me, len);
                group.broadcast_bytes(&mut data, root).expect(case);
                assert!(data == sample(DType::I32, root, len), "{case} root={root}");
            }
        }
        Collective::Allgather => {
            // Rank r brings len + r elements, and every third one brings none.
            let length = |r: usize| if r % 3 == 2 { 0 } else { len + r };
            let output = group.allgather(&support::numbers(me, length(me))).expect(case);
            let want: Vec<i32> = (0..n).flat_map(|r| support::numbers(r, length(r))).collect();
            assert!(output == want, "{case}");
        }
        Collective::Reducescatter => {
            let (rows, width) = (len, 3);
            let output = group.reducescatter(&support::numbers(me, rows * width), rows, ReduceOp::Sum).expect(case);
            let all = model::sum_of_numbers(n, rows * width);
            let mine = corro_core::shape::share(rows, n, me);
            assert!(output == all[mine.start * width..mine.end * width], "{case}");
        }
        Collective::Alltoall => {
            // From a to b go (a + 2 b) % 4 parts of len.
            let split = |a: usize, b: usize| (a + 2 * b) % 4 * len;
            let splits: Vec<usize> = (0..n).map(|b| split(me, b)).collect();
            let input: Vec<i32> = (0..n).flat_map(|b| support::letter(me, b, split(me, b))).collect();
            let (output, received) = group.alltoall(&input, &splits).expect(case);
            assert_eq!(received, (0..n).map(|a| split(a, me)).collect::<Vec<_>>(), "{case}");
            let want: Vec<i32> = (0..n).flat_map(|a| support::letter(a, me, split(a, me))).collect();
            assert!(output == want, "{case}");
        }
        Collective::Barrier => group.barrier().expect(case),
        // Has a table of its own.
        Collective::Allreduce => {}
    }
}

const ALL_RANKS: [usize; 17] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];

const SHORT: &[usize] = &[0, 1, 7, 100];

#[test]
fn threads_allreduce() {
    allreduce_table(Transport::Threads, &ALL_RANKS, SHORT);
    allreduce_table(Transport::Threads, &[2, 3, 5], &[20_011]);
    allreduce_long(Transport::Threads, &[2, 3, 5, 8], &[100_003, 700_001]);
}

#[test]
fn threads_movers() {
    movers(Transport::Threads, &ALL_RANKS, &[0, 1, 5, 1000]);
    movers(Transport::Threads, &[2, 3, 5], &[100_003]);
}

#[test]
fn threads_on_several_hosts_allreduce() {
    allreduce_table(Transport::ThreadsOnHosts, &ALL_RANKS, SHORT);
    allreduce_table(Transport::ThreadsOnHosts, &[3, 5], &[20_011]);
    allreduce_long(Transport::ThreadsOnHosts, &[3, 4, 7], &[100_003, 700_001]);
}

#[test]
fn threads_on_several_hosts_movers() {
    movers(Transport::ThreadsOnHosts, &ALL_RANKS, &[0, 1, 5, 1000]);
    movers(Transport::ThreadsOnHosts, &[2, 3, 5], &[100_003]);
}

#[test]
fn shared_memory_by_meeting() {
    allreduce_table(Transport::Shm, &ALL_RANKS, SHORT);
    allreduce_long(Transport::Shm, &[2, 3], &[100_003, 700_001]);
    movers(Transport::Shm, &ALL_RANKS, &[0, 1, 1000]);
}

#[test]
fn tcp() {
    allreduce_table(Transport::Tcp, &ALL_RANKS, SHORT);
    allreduce_table(Transport::Tcp, &[3], &[20_011]);
    allreduce_long(Transport::Tcp, &[2, 3, 5], &[100_003, 700_001]);
    movers(Transport::Tcp, &ALL_RANKS, &[0, 1, 1000]);
    movers(Transport::Tcp, &[2, 3, 6], &[100_003]);
}

#[test]
fn tls() {
    allreduce_table(Transport::Tls, &ALL_RANKS, SHORT);
    allreduce_long(Transport::Tls, &[2, 3, 5], &[100_003, 700_001]);
    movers(Transport::Tls, &ALL_RANKS, &[0, 1, 1000]);
    movers(Transport::Tls, &[2, 3, 6], &[100_003]);
}

#[test]
fn tcp_between_hosts_and_memory_inside() {
    allreduce_table(Transport::TcpAndShm, &ALL_RANKS, SHORT);
    allreduce_long(Transport::TcpAndShm, &[3, 5], &[100_003, 700_001]);
    movers(Transport::TcpAndShm, &ALL_RANKS, &[0, 1, 1000]);
    movers(Transport::TcpAndShm, &[3, 5], &[100_003]);
}

/// Messages of one pair of ranks on several connections, more data than sockets hold: streams must not mix.
#[test]
fn several_streams_a_pair() {
    for transport in [Transport::Tcp, Transport::Tls] {
        let settings = Settings { streams: 3, ..support::settings() };
        with_fabrics(transport, 3, &settings, move |fabric| {
            let mut group = Group::world(fabric).expect("opening the world");
            let len = 6_000_003;
            let mut data = sample(DType::U8, group.rank(), len);
            group.allreduce_bytes(&mut data, &Reduction::new(DType::U8, ReduceOp::Sum)).expect("allreduce");
            assert!(data == model::allreduce(DType::U8, ReduceOp::Sum, 3, len), "{transport:?}");
            group.barrier().expect("the last barrier");
        });
    }
}

/// Long data from private memory both ways there are: through the board, and read in place where the system allows it
/// (which takes a core for each rank, or being told so). Also as several tensors, which always go through the board.
#[test]
fn long_private_data_by_either_way() {
    for spin in [true, false] {
        let settings = Settings { spin: Some(spin), ..support::settings() };
        with_fabrics(Transport::Shm, 3, &settings, move |fabric| {
            let mut group = Group::world(fabric).expect("opening the world");
            for (dtype, len) in [(DType::F32, 4_300_007), (DType::U8, 7_000_001), (DType::BF16, 2_500_003)] {
                let how = Reduction::new(dtype, ReduceOp::Sum);
                let want = model::allreduce(dtype, ReduceOp::Sum, 3, len);
                for _ in 0..2 {
                    let mut data = sample(dtype, group.rank(), len);
                    group.allreduce_bytes(&mut data, &how).expect("allreduce");
                    assert!(model::same(dtype, &data, &want), "{dtype} spin={spin}");
                }
                // Not in place, but for one rank; and then for none.
                for in_place in [Some(1), None] {
                    let mut data = sample(dtype, group.rank(), len);
                    let mut result = vec![7; data.len()];
                    if in_place == Some(group.rank()) {
                        group.allreduce_bytes(&mut data, &how).expect("allreduce in place");
                        result = data;
                    } else {
                        group.allreduce_many(&mut [Tensor::apart(&data, &mut result)], &how).expect("allreduce apart");
                        assert_eq!(data, sample(dtype, group.rank(), len), "what is brought is left as it is");
                    }
                    assert!(model::same(dtype, &result, &want), "{dtype} spin={spin} apart");
                }
                let mut data = sample(dtype, group.rank(), len);
                let (one, two) = data.split_at_mut(len / 3 * dtype.size());
                group
                    .allreduce_many(&mut [Tensor::in_place(one), Tensor::in_place(two)], &how)
                    .expect("allreduce of two");
                assert!(model::same(dtype, &data, &want), "{dtype} spin={spin} in two");
            }
            group.barrier().expect("the last barrier");
        });
    }
}

#[test]
fn topologies_are_what_the_tables_say() {
    on_ranks(Transport::Threads, 3, |group| assert_eq!(group.topology(), Topology::OneHost));
    on_ranks(Transport::ThreadsOnHosts, 5, |group| assert_eq!(group.topology(), Topology::SharedHosts));
    on_ranks(Transport::Tcp, 3, |group| assert_eq!(group.topology(), Topology::OneEach));
    on_ranks(Transport::TcpAndShm, 3, |group| assert_eq!(group.topology(), Topology::SharedHosts));
}
