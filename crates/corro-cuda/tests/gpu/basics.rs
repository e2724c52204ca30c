//! Devices, streams, events, memory.

#![expect(unsafe_code, reason = "foreign streams and memory are promised to be good")]

use std::sync::Arc;

use corro_cuda::{DeviceMemory, Event, EventPool, PinnedRegion, Stream, driver, sharing};

use crate::support::Gpu;

#[test]
#[ignore = "needs a GPU"]
fn a_device_tells_what_it_is() {
    let driver = driver().unwrap();
    let device = driver.device(0).unwrap();
    let (name, uuid) = (device.name().unwrap(), device.uuid().unwrap());
    println!("{driver:?}, {} devices; GPU 0 is {name}, {uuid:02x?}", driver.device_count().unwrap());
    println!(
        "compute capability {:?}, {} multiprocessors",
        device.compute_capability().unwrap(),
        device.multiprocessors().unwrap()
    );
    println!("MPS {}, virtual memory {}", device.is_under_mps().unwrap(), device.has_virtual_memory().unwrap());
    assert!(!name.is_empty() && uuid != [0; 16] && driver.version() >= 11000);
    assert!(device.free_memory().unwrap() <= device.total_memory().unwrap());
    assert!(device.has_unified_addressing().unwrap() && device.shares_events().unwrap());
    assert!(device.can_reach(&device.clone()).unwrap());
    let missing = driver.device(1000).unwrap_err().to_string();
    assert!(missing.contains("no GPU 1000"), "{missing}");
}

#[test]
#[ignore = "needs a GPU"]
fn work_is_copied_zeroed_and_waited_for() {
    let gpu = Gpu::new();
    let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
    let (a, b) = (gpu.with(&bytes), gpu.allocate(1000));
    let other = Stream::new(&gpu.device).unwrap();
    let pool = EventPool::new(&gpu.device, 2);
    for _ in 0..5 {
        let (written, seen) = (pool.take().unwrap(), pool.take().unwrap());
        gpu.stream.copy(b.span(), a.span()).unwrap();
        gpu.stream.zero(b.span().part(10..20).unwrap()).unwrap();
        gpu.stream.record(&written).unwrap();
        other.wait(&written).unwrap();
        other.copy(a.span(), b.span()).unwrap();
        other.record(&seen).unwrap();
        seen.synchronize().unwrap();
        assert!(seen.is_done().unwrap() && other.is_done().unwrap());
    }
    let mut expected = bytes;
    expected[10..20].fill(0);
    assert_eq!(gpu.read(a.span()), expected);
    assert!(gpu.stream.copy(a.span(), b.span().part(0..3).unwrap()).is_err());
}

#[test]
#[ignore = "needs a GPU"]
fn the_default_stream_and_a_threads_own_context_are_left_alone() {
    let gpu = Gpu::new();
    // SAFETY: 0 is always a stream.
    let default = unsafe { Stream::foreign(&gpu.device, 0) };
    let memory = gpu.allocate(64);
    default.zero(memory.span()).unwrap();
    let event = Event::new(&gpu.device).unwrap();
    default.record(&event).unwrap();
    let entered = gpu.device.enter().unwrap();
    drop(gpu.device.enter().unwrap());
    default.synchronize().unwrap();
    drop(entered);
    assert!(event.is_done().unwrap());
    std::thread::scope(|s| s.spawn(|| gpu.stream.zero(memory.span()).unwrap()).join().unwrap());
    assert_eq!(gpu.read(memory.span()), [0; 64]);
}

#[test]
#[ignore = "needs a GPU"]
fn memory_of_the_host_is_pinned_and_reached() {
    const LEN: usize = 1 << 16;
    let gpu = Gpu::new();
    let mut host = vec![0u8; 2 * LEN];
    let start = host.as_mut_ptr().align_offset(4096);
    // SAFETY: inside the vector.
    let at = unsafe { host.as_mut_ptr().add(start) };
    // SAFETY: the vector outlives the region and is not touched while it is pinned.
    let region = unsafe { PinnedRegion::register(&gpu.device, at, LEN) }.unwrap();
    let memory = gpu.with(&vec![7; LEN]);
    // A copy engine, and a kernel.
    gpu.stream.copy(region.span().part(0..LEN / 2).unwrap(), memory.span().part(0..LEN / 2).unwrap()).unwrap();
    let rest = LEN / 2..LEN;
    gpu.kernels
        .gather(&gpu.stream, &[(region.span().part(rest.clone()).unwrap(), memory.span().part(rest).unwrap())])
        .unwrap();
    drop(region);
    assert!(host[start..start + LEN].iter().all(|b| *b == 7));
}

#[test]
#[ignore = "needs a GPU"]
fn an_allocation_is_found_by_any_of_its_addresses() {
    let gpu = Gpu::new();
    let memory = gpu.allocate(3 << 20);
    let (base, len) = sharing::allocation_of(&gpu.device, memory.span().address() + 12345).unwrap();
    assert!(base == memory.span().address() && len >= 3 << 20, "{base:#x} {len}");
    assert!(sharing::memory_handle(&gpu.device, base).unwrap().is_some());
    assert!(sharing::allocation_of(&gpu.device, 16).is_err());
    let kept = Arc::new(());
    // SAFETY: the allocation outlives it.
    let tensor = unsafe { DeviceMemory::from_raw(base, 100, 0, None, Arc::new(Arc::clone(&kept))) };
    gpu.stream.zero(tensor.span()).unwrap();
    assert_eq!(gpu.read(tensor.span()), [0; 100]);
}

#[test]
#[ignore = "needs a GPU"]
fn too_much_memory_is_an_error_with_advice() {
    let gpu = Gpu::new();
    let text = corro_cuda::Allocation::new(&gpu.device, 1 << 50).unwrap_err().to_string();
    assert!(text.contains("1125899906842624 bytes") && text.contains("GPU 0"), "{text}");
    // The device works all the same.
    assert_eq!(gpu.read(gpu.with(&[1, 2, 3]).span()), [1, 2, 3]);
}
