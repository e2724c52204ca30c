//! Every plane does what [`cases`](crate::support::cases) say.

use corro_agreement::request::MemoryPlace;
use corro_planes::testing::{Fake, read, upload};
use corro_planes::{Host, Memory, Plane};

use crate::support::cases::{Kit, every_case, large_cases};
use crate::support::on_groups;

/// The plane of the host.
struct OnHost(Host);

impl Kit for OnHost {
    fn plane(&mut self) -> &mut dyn Plane {
        &mut self.0
    }

    fn place(&self) -> MemoryPlace {
        MemoryPlace::Host
    }

    fn make(&self, bytes: &[u8]) -> Memory {
        bytes.to_vec().into()
    }

    fn read(&self, memory: &Memory) -> Vec<u8> {
        memory.host().unwrap().as_slice().to_vec()
    }
}

/// A plane whose results are there later.
struct OnFake(Fake);

impl Kit for OnFake {
    fn plane(&mut self) -> &mut dyn Plane {
        &mut self.0
    }

    fn place(&self) -> MemoryPlace {
        MemoryPlace::Gpu
    }

    fn make(&self, bytes: &[u8]) -> Memory {
        upload(bytes)
    }

    fn read(&self, memory: &Memory) -> Vec<u8> {
        assert!(memory.device().is_some());
        read(memory)
    }
}

/// All on one host, each on its own, and mixed.
const WORLDS: [&[usize]; 5] = [&[0], &[0, 0], &[0, 1], &[0, 0, 1], &[0, 0, 0, 0]];

#[test]
fn the_host() {
    for hosts in WORLDS {
        on_groups(hosts, |group| every_case(&mut OnHost(Host::default()), group));
    }
}

#[test]
fn a_device_that_is_done_later() {
    for hosts in WORLDS {
        on_groups(hosts, |group| every_case(&mut OnFake(Fake { asks: Some(3), ..Fake::new("fake") }), group));
    }
}

#[test]
fn large_tensors_of_the_host() {
    for hosts in [&[0][..], &[0, 0, 1]] {
        on_groups(hosts, |group| large_cases(&mut OnHost(Host::default()), group));
    }
}
