//! Seeing what happens in a job.
//!
//! Ranks tell their launcher, twice a second, what their engines have counted anyway ([`Note`]). The launcher makes a
//! [`Story`] of it, in bounded memory, whatever the job's length. A story can be asked for a [`View`], which is one JSON object: the
//! page draws it live, a recording is one in a file, and a report is made from one. Nothing here decides anything about a job.
//!
//! | module | holds |
//! | --- | --- |
//! | [`note`] | what a rank tells (pure) |
//! | [`rank`] | the rank's side: steps, waiting, CPU and memory |
//! | [`shares`] | where the time of a step went: computing, communicating, waiting for others (pure) |
//! | [`story`] | what the launcher knows of a job, bounded (pure) |
//! | [`view`] | a story as JSON (pure) |
//! | [`advice`] | what to do about it: a table of rules (pure) |
//! | [`report`] | one screen of text, and one HTML file |
//! | [`recording`] | a view in a file |
//! | [`values`] | training values in files: JSON lines, TensorBoard |
//! | [`timeline`] | what traces say: a summary, a page (pure) |
//! | [`trace`] | traces of ranks, and how they become one |
//! | [`page`] | the live page: a small HTTP server |
//! | [`job_socket`] | the running jobs of this user, and how to ask them |
//! | [`watcher`] | what a launcher holds: the story, its clock, the files |

#![forbid(unsafe_code)]

pub mod advice;
pub mod job_socket;
pub mod note;
pub mod page;
pub mod rank;
pub mod recording;
pub mod report;
pub mod shares;
pub mod story;
pub mod timeline;
pub mod trace;
pub mod values;
pub mod view;
pub mod watcher;

pub use note::Note;
pub use story::Story;
pub use view::View;
pub use watcher::Watcher;
