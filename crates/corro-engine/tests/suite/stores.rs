//! Stores of parameters for ranks that have an engine.

use corro_core::DType;
use corro_engine::store::Store;
use corro_engine::{GLOBAL, Options};
use corro_server::session::KeySpec;
use corro_server::{Consistency, Rule};

use crate::support::{on_hosts, on_ranks, ranks};

fn spec(name: &str, rule: Rule) -> KeySpec {
    KeySpec { name: name.into(), dtype: DType::F32, rows: 3, width: 1, rule, striped: false, code: None }
}

fn floats(value: f32) -> Vec<u8> {
    [value; 3].iter().flat_map(|f| f.to_le_bytes()).collect()
}

#[test]
fn ranks_find_the_servers_in_each_other() {
    for hosts in [&[0][..], &[0, 0], &[0, 0, 1]] {
        let n = hosts.len() as f32;
        on_hosts(hosts, Options::default, move |engine| {
            // Two at once, which do not know of each other.
            let stores: Vec<Store> = (0..2).map(|_| Store::open(engine, GLOBAL, Consistency::Bsp).unwrap()).collect();
            for (at, store) in stores.iter().enumerate() {
                store.init(spec("x", Rule::Sum), None).unwrap();
                let mut value = [0; 12];
                for round in 1..4u8 {
                    store.push("x", &floats(f32::from(round) + at as f32), 0, None).unwrap();
                    store.value(&store.pull("x", 0).unwrap(), &mut value).unwrap();
                    assert_eq!(value.to_vec(), floats(n * (f32::from(round) + at as f32)));
                }
            }
            for store in stores {
                store.close().unwrap();
            }
        });
    }
}

#[test]
fn a_store_is_for_the_ranks_of_its_set() {
    on_ranks(3, |engine| {
        let set = engine.add_process_set(&ranks(&[0, 2])).unwrap();
        let opened = Store::open(engine, set, Consistency::Ssp { bound: 1 });
        if engine.rank().index() == 1 {
            assert!(opened.unwrap_err().to_string().contains("process set"));
            return;
        }
        let store = opened.unwrap();
        store.init(spec("x", Rule::Add), None).unwrap();
        store.push("x", &floats(1.0), 0, None).unwrap();
        store.clock().unwrap();
        store.barrier().unwrap();
        let mut value = [0; 12];
        store.value(&store.pull("x", 0).unwrap(), &mut value).unwrap();
        assert_eq!(value.to_vec(), floats(2.0));
        store.close().unwrap();
    });
}
