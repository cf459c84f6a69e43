//! scaffolding
use crate::plan::{BackendPlan, ServerAddress};
use crate::socket_address::SocketAddress;
use crate::target::Target;
use anyhow::Result;
use rustix::io::Errno;
use splice_route::Arrival;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

pub(crate) struct Control;
impl Control {
    pub(crate) fn start() -> Result<Self> {
        Ok(Self)
    }
}
pub(crate) struct Backend {
    plan: Arc<BackendPlan>,
    target: Arc<Target>,
}
pub(crate) struct PickKey<'a> {
    pub(crate) client: Option<IpAddr>,
    pub(crate) server_name: Option<&'a str>,
}
#[derive(Default)]
pub(crate) struct Tried(usize);
impl Tried {
    pub(crate) fn add(&mut self, _l: &Lease) {
        self.0 += 1
    }
}
pub(crate) struct Ticket;
pub(crate) struct Lease(Arc<Target>);
pub(crate) enum Pick {
    Server(Lease),
    Queued(Ticket),
    QueueFull,
    NoneLeft(String),
}
impl Lease {
    pub(crate) fn addresses(&self) -> Arc<[SocketAddress]> {
        self.0.addresses()
    }
    pub(crate) fn connected(&self) {}
    pub(crate) fn failed(&self) {}
    pub(crate) fn reset_before_first_byte(&self) {}
    pub(crate) fn was_cut(&self) -> bool {
        false
    }
}
impl Backend {
    pub(crate) fn new(plan: Arc<BackendPlan>, _c: &Control) -> Result<Arc<Self>> {
        let ServerAddress::Address(a) = plan.servers[0].address.clone() else {
            unreachable!()
        };
        let target = Target::new(a, plan.connect_timeout)?;
        Ok(Arc::new(Self { plan, target }))
    }
    pub(crate) fn update(&self, _plan: Arc<BackendPlan>) {}
    pub(crate) fn snapshot(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
    pub(crate) fn retire(&self) {}
    pub(crate) fn name(&self) -> &str {
        &self.plan.name
    }
    pub(crate) fn plan(&self) -> Arc<BackendPlan> {
        self.plan.clone()
    }
    pub(crate) fn others(&self, _t: &Tried) -> usize {
        0
    }
    pub(crate) fn addresses(&self) -> Vec<SocketAddress> {
        self.target.addresses().to_vec()
    }
    pub(crate) fn keep_off(&self, l: &[SocketAddress]) -> Result<Option<SocketAddress>> {
        self.target.keep_off(l)
    }
    pub(crate) fn socket(&self, a: &SocketAddress, _: &Arrival) -> Result<OwnedFd, Errno> {
        a.socket()
    }
    pub(crate) fn pick(
        self: &Arc<Self>,
        _k: &PickKey,
        t: &Tried,
        _w: impl FnOnce() -> splice::Waker,
    ) -> Pick {
        if t.0 > 0 {
            return Pick::NoneLeft(String::new());
        }
        if self.target.addresses().is_empty() {
            return Pick::NoneLeft(self.target.why_nowhere());
        }
        Pick::Server(Lease(self.target.clone()))
    }
}
