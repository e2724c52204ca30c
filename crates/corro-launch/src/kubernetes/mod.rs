//! Jobs on Kubernetes without an operator.
//!
//! A job of fixed size is an Indexed Job whose pods are its ranks, a headless Service by which they find rank 0, and a Secret. An
//! elastic one is a Job of one pod, its driver, and a `StatefulSet` of workers, whose agents join it.
//!
//! | module | holds |
//! | --- | --- |
//! | `names`, `yaml` | what Kubernetes takes for names and amounts; how objects are written (pure) |
//! | `job`, `pod`, `fixed`, `elastic`, `objects` | what is wanted, and the objects that are asked for (pure) |
//! | `pods`, `follow`, `log_lines` | what pods say of themselves, and what follows from it (pure) |
//! | `kubectl` | the one way to talk to a cluster |

mod elastic;
mod fixed;
pub(crate) mod follow;
mod job;
pub(crate) mod kubectl;
pub(crate) mod log_lines;
pub(crate) mod names;
mod objects;
mod pod;
pub(crate) mod pods;
mod yaml;

pub(crate) use job::{Elastic, Job, JobSecret};
pub(crate) use objects::{objects, owned};
pub(crate) use yaml::documents;
