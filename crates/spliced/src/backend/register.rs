//! The backends of the process by their names, for those who ask about them and change them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use anyhow::{Result, bail};
use serde_json::Value;

use super::act::Order;
use super::order::NoServer;
use super::{Backend, lock};

#[derive(Default)]
pub(crate) struct Backends(Mutex<All>);

#[derive(Default)]
struct All {
    current: BTreeMap<String, Arc<Backend>>,
    /// Those to which no route leads any more, as long as somebody has them.
    former: Vec<Weak<Backend>>,
}

impl Backends {
    /// The backend with this name: that of the configuration, or a former one that still has connections.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Backend>> {
        let all = lock(&self.0);
        let current = all.current.get(name).cloned();
        current.or_else(|| all.former().find(|backend| backend.name() == name))
    }

    fn is_current(&self, name: &str) -> bool {
        lock(&self.0).current.contains_key(name)
    }

    /// Those of the configuration are these from now on. Returns those that are no longer among them.
    pub(crate) fn replace(&self, backends: BTreeMap<String, Arc<Backend>>) -> Vec<Arc<Backend>> {
        let mut all = lock(&self.0);
        let before = std::mem::replace(&mut all.current, backends);
        let is_gone = |(name, _): &(String, _)| !all.current.contains_key(name);
        let gone: Vec<_> = before.into_iter().filter(is_gone).collect();
        let gone: Vec<_> = gone.into_iter().map(|(_, backend)| backend).collect();
        let All { current, former } = &mut *all;
        former.retain(|backend| {
            let name = |backend: Arc<Backend>| backend.name().to_owned();
            let name = backend.upgrade().map(name);
            name.is_some_and(|name| !current.contains_key(&name))
        });
        former.extend(gone.iter().map(Arc::downgrade));
        let current: Vec<_> = current.values().cloned().collect();
        drop(all);
        current.iter().for_each(|backend| backend.begin_to_tell());
        gone
    }

    /// The process ends, and cuts the connections that are left.
    pub(crate) fn end(&self) {
        for backend in self.all() {
            backend.end();
        }
    }

    fn all(&self) -> Vec<Arc<Backend>> {
        let all = lock(&self.0);
        all.current.values().cloned().chain(all.former()).collect()
    }

    /// The backends and their servers.
    pub(crate) fn told(&self) -> Value {
        self.all()
            .iter()
            .map(|backend| backend.snapshot())
            .collect()
    }

    /// Does what is asked of a server, for `by`, and tells what it is then. Waits for nobody.
    ///
    /// # Errors
    /// If there is no such server, or it cannot be done.
    pub(crate) fn obey(&self, order: &Order, by: &str) -> Result<Value> {
        match self.get(&order.backend) {
            Some(_) if order.act.is_of_membership() && !self.is_current(&order.backend) => bail!(
                "backend {} was removed, and keeps its servers until their last connections end",
                order.backend
            ),
            Some(backend) => backend.obey(order, by),
            None => {
                let all = lock(&self.0);
                let names = all.current.keys().map(String::as_str);
                Err(NoServer::in_no_backend(order, names).into())
            }
        }
    }
}

impl All {
    fn former(&self) -> impl Iterator<Item = Arc<Backend>> {
        let alive = self.former.iter().filter_map(Weak::upgrade);
        alive.filter(|backend| backend.has_connections())
    }
}
