//! Does training still work: counter-examples, in which methods that lose what they leave out fail visibly.

use corro_compress::{Ledger, Peers};
use corro_testing::Random;

use crate::memory::{Tensor, method, reduce, together};

fn tensor(name: &str, shape: &[usize], values: Vec<f32>) -> [Tensor; 1] {
    [Tensor { name: name.into(), shape: shape.to_vec(), values }]
}

/// Each rank's largest gradient alone points away from where all of them want to go.
#[test]
fn the_largest_value_alone_leads_astray_without_feedback() {
    const A: [[f32; 3]; 3] = [[-3.0, 2.0, 2.0], [2.0, -3.0, 2.0], [2.0, 2.0, -3.0]];
    let dot = |a: &[f32; 3], x: &[f32; 3]| a.iter().zip(x).map(|(a, x)| a * x).sum::<f32>();
    let end = |text: &str| {
        let ends = together(3, |mut peers| {
            let a = &A[peers.me()];
            let mut ledger = Ledger::default();
            let mut x = [1f32; 3];
            for _ in 0..200 {
                let gradient = (0..3).map(|i| 2.0 * dot(a, &x) * a[i] + x[i] / 2.0).collect();
                let mut tensor = tensor("x", &[3], gradient);
                reduce(&mut peers, &mut ledger, &method(text), &mut tensor);
                x.iter_mut().zip(&tensor[0].values).for_each(|(x, sum)| *x -= 0.05 * sum / 3.0);
            }
            x
        });
        let f = |a: &[f32; 3], x: &[f32; 3]| {
            f64::from(dot(a, x)).powi(2) + x.iter().map(|x| f64::from(x * x)).sum::<f64>() / 4.0
        };
        A.iter().map(|a| f(a, &ends[0])).sum::<f64>() / 3.0
    };
    let density = "density=0.3333333333333333";
    let lost = end(&format!("topk {density} feedback=no"));
    assert!(lost > 1e6, "{lost:e}");
    for text in ["topk", "ef21"] {
        let kept = end(&format!("{text} {density}"));
        assert!(kept < 1e-6, "{text}: {kept:e}");
    }
}

/// Most gradients say "up" a little, a few say "down" a lot: the mean is down.
#[test]
fn signs_alone_go_the_wrong_way_without_feedback() {
    const WIDE: usize = 8;
    let end = |text: &str, lr: f32| {
        together(3, |mut peers| {
            let mut random = Random::new(peers.me() as u64 + 1);
            let mut ledger = Ledger::default();
            let mut x = vec![0f32; WIDE];
            for _ in 0..3000 {
                let gradient = (0..WIDE).map(|_| if random.one_in(4) { 4.0 } else { -1.0 }).collect();
                let mut tensor = tensor("x", &[WIDE], gradient);
                reduce(&mut peers, &mut ledger, &method(text), &mut tensor);
                x.iter_mut().zip(&tensor[0].values).for_each(|(x, sum)| *x = (*x - lr * sum / 3.0).clamp(-1.0, 1.0));
            }
            x
        })
        .remove(0)
    };
    let lost = end("sign", 0.02);
    assert!(lost.iter().all(|x| *x > 0.8), "{lost:?}");
    let kept = end("onebit", 0.02);
    assert!(kept.iter().all(|x| *x < -0.7), "{kept:?}");
}
