//! The rank's side: what is gathered for a [`crate::Note`] between two of them. Cheap enough to be always there.

mod costs;
pub mod host;
mod steps;
mod waiting;

pub use costs::Costs;
pub use steps::Steps;
pub use waiting::Waiting;
