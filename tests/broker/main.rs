//! The exchange's control plane from the outside: brokers as programs, students and workers as handles.

mod book;
mod child;
mod hostile;
mod limits;
mod program;
mod raw;
mod registration;
mod restart;
mod starts;
mod support;
mod users;
