//! What the students of one group share: the page that holds their generation and cursors.

use crate::base::{Error, Result, Status};
use crate::exchange::message::Uuid;
use crate::os::descriptor;
use crate::segment::group::GroupPage;
use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Groups whose pages are kept for members that may come back.
const MAX_GROUPS: usize = 1024;

#[derive(Debug)]
struct Group {
    page: Option<Arc<OwnedFd>>,
    members: Vec<Uuid>,
    used: Instant,
}

/// All groups.
#[derive(Debug)]
pub struct Groups {
    grace: Instant,
    groups: HashMap<String, Group>,
}

/// A student that can now be admitted, and the page to be given to it.
pub type Admission = (Uuid, Arc<OwnedFd>);

/// Checks that a descriptor is a group page.
pub fn check_page(fd: BorrowedFd<'_>) -> Result<()> {
    descriptor::check_memory(fd, 4096, "group page")?;
    GroupPage::map(fd).map(drop).map_err(|e| Error::new(Status::Refused, format!("the descriptor of the group page: {e}")))
}

impl Groups {
    /// None yet. Until `grace` no page is made.
    pub fn new(grace: Instant) -> Groups {
        Groups { grace, groups: HashMap::new() }
    }

    /// A student joins, perhaps with a page. Those who can be admitted now come out: it, and whoever waited for the page.
    pub fn join(&mut self, name: &str, student: Uuid, offered: Option<Arc<OwnedFd>>, now: Instant) -> Result<Vec<Admission>> {
        if !self.groups.contains_key(name) && self.groups.len() >= MAX_GROUPS {
            let idle = self.groups.iter().filter(|(_, g)| g.members.is_empty()).min_by_key(|(_, g)| g.used).map(|(name, _)| name.clone());
            idle.map(|name| self.groups.remove(&name));
        }
        let group = self.groups.entry(name.to_owned()).or_insert_with(|| Group { page: None, members: vec![], used: now });
        group.members.push(student);
        group.used = now;
        match (&group.page, offered) {
            (Some(page), _) => Ok(vec![(student, page.clone())]),
            (None, Some(page)) => Ok(group.give(page)),
            (None, None) if now < self.grace => Ok(vec![]),
            (None, None) => {
                let page = new_page(name)?;
                Ok(group.give(page))
            }
        }
    }

    /// A student leaves. The page stays, for whoever comes back.
    pub fn leave(&mut self, name: &str, student: Uuid) {
        if let Some(group) = self.groups.get_mut(name) {
            group.members.retain(|m| *m != student);
        }
    }

    /// When nobody has offered a page for long enough, makes one.
    pub fn tick(&mut self, now: Instant) -> Result<Vec<Admission>> {
        let mut admitted = Vec::new();
        if now >= self.grace {
            for (name, group) in self.groups.iter_mut().filter(|(_, g)| g.page.is_none() && !g.members.is_empty()) {
                let page = new_page(name)?;
                admitted.extend(group.give(page));
            }
        }
        Ok(admitted)
    }
}

fn new_page(name: &str) -> Result<Arc<OwnedFd>> {
    tracing::info!("group '{name}' begins at generation 0");
    GroupPage::create().map(|(_, fd)| Arc::new(fd))
}

impl Group {
    // Whoever is a member while there is no page waits for one.
    fn give(&mut self, page: Arc<OwnedFd>) -> Vec<Admission> {
        self.page = Some(page.clone());
        self.members.iter().map(|m| (*m, page.clone())).collect()
    }
}
