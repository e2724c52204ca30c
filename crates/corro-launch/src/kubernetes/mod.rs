//! Jobs on Kubernetes without an operator: what to ask the API for. Pure.
//!
//! A job is an Indexed Job whose pods are its ranks, a headless Service by which they find rank 0, and a Secret. `names` is what
//! Kubernetes takes for names and amounts, `manifest` the objects, `yaml` how they are written.

mod manifest;
pub(crate) mod names;
mod yaml;

pub(crate) use manifest::{Job, JobSecret, objects};
pub(crate) use yaml::documents;
