//! Servers that orders add to a backend and remove from it, until a reload returns to what the configuration says.

use std::sync::{Arc, PoisonError};

use anyhow::{Result, bail, ensure};
use splice::{Address, SocketName};

use super::drain::By;
use super::server::Server;
use super::{Backend, lock};
use crate::plan::{
    BackendPlan, MOST_SERVERS, NO_MACHINE, ServerAddress, ServerPlan, Source, lacks_source,
};

/// The longest text that is taken for an address: a name of 253 bytes (RFC 1035) and its port have room.
const ADDRESS_MOST_BYTES: usize = 300;

impl Backend {
    /// Adds the server at the address `text`. Waits for no name.
    ///
    /// # Errors
    /// If there is no place for it, it is here already, or clients could not be joined with it.
    pub(super) fn add_until_reload(
        self: &Arc<Self>,
        text: &str,
        weight: u16,
        by: &str,
    ) -> Result<Arc<Server>> {
        // One of the two will be removed, and then what is left of it ends after a time.
        self.control.start()?;
        let mut ordered_away = lock(&self.ordered_away);
        let before = self.plan();
        let (planned_address, address) = new_address(text, &before)?;
        let name = planned_address.to_string();
        ensure!(
            self.find(&name).is_none(),
            "backend {} has a server {name} already",
            self.name
        );
        let planned = ServerPlan {
            address: planned_address,
            weight,
            backup: false,
            disabled: false,
        };
        let former = self.find_returning(&name, None);
        let server = match &former {
            Some(server) => Arc::clone(server),
            None => Server::new(address, None, &planned, &before, None)?,
        };
        if let Some(own) = server.target.leads_back(&lock(&self.listening)) {
            bail!("server {name} is this process itself ({own}); choose another server");
        }
        let mut plan = BackendPlan::clone(&before);
        plan.servers.push(planned);
        let plan = self.set_plan(plan);
        match former {
            Some(server) => self.take_back(&server, &plan),
            None => {
                server.starts();
                self.take_in(server, &plan);
            }
        }
        // One whose connections were cut has another one in its place.
        let Some(server) = self.find(&name) else {
            bail!("server {name} was removed meanwhile; try again");
        };
        // The configuration may have it, and an order have removed it.
        server.set_added(!ordered_away.remove(&name));
        tracing::info!(
            "backend {}: server {name} was added with the weight {weight} until the next reload, by {by}",
            self.name
        );
        server.configure(false);
        self.undrain(&server, by);
        // So that a reload returns to another one of the configuration.
        server.change(weight, false);
        self.weigh(&server, weight.into(), by);
        Ok(server)
    }

    /// Removes a server as a reload does that no longer has it. One that has been removed stays so.
    ///
    /// # Errors
    /// If the backend needs it.
    pub(super) fn remove_until_reload(self: &Arc<Self>, server: &Server, by: &str) -> Result<()> {
        let mut ordered_away = lock(&self.ordered_away);
        let name = server.name();
        let mut plan = BackendPlan::clone(&self.plan());
        names_its_servers(&plan)?;
        let is_this = |planned: &ServerPlan| planned.address.to_string() == name;
        if !plan.servers.iter().any(is_this) {
            return Ok(());
        }
        ensure!(
            plan.servers.len() > 1,
            "{name} is the only server of backend {}, which needs one; add another one first, or drain this one",
            self.name
        );
        plan.servers.retain(|planned| !is_this(planned));
        let plan = self.set_plan(plan);
        if !server.is_added() {
            ordered_away.insert(name.into());
        }
        let id = server.id();
        self.remove(
            |other| other.id() == id,
            plan.on_remove,
            &By::Order(by.into()),
        );
        self.tell_followers();
        // Clients that wait for it go elsewhere.
        self.queue.call_next();
        Ok(())
    }

    fn set_plan(&self, plan: BackendPlan) -> Arc<BackendPlan> {
        let plan = Arc::new(plan);
        *self.plan.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&plan);
        plan
    }
}

/// The address in `text`, if a backend with this plan can have one more server there.
fn new_address(text: &str, plan: &BackendPlan) -> Result<(ServerAddress, Address)> {
    names_its_servers(plan)?;
    ensure!(
        text.len() <= ADDRESS_MOST_BYTES,
        "the address has more than {ADDRESS_MOST_BYTES} bytes; shorten it"
    );
    // It would be shown on terminals.
    ensure!(
        !text.contains(char::is_control),
        "{text:?} cannot be added: it has control characters; remove them"
    );
    ensure!(
        !text.starts_with("srv:"),
        "{text:?} cannot be added: only the configuration names SRV records; write HOST:PORT"
    );
    ensure!(
        !text.contains(char::is_control),
        "{text:?} cannot be used: a name with control characters would break up the log; choose another address"
    );
    let planned = match text.parse()? {
        SocketName::Connected(address) => ServerAddress::Address(address),
        name => ServerAddress::Datagrams(name),
    };
    let Some(address) = planned.fixed().cloned() else {
        bail!("{text:?} cannot be added: write HOST:PORT, or udp:HOST:PORT for datagrams");
    };
    ensure!(
        !matches!(address, Address::Inet { port: 0, .. }),
        "{text:?} cannot be used: nobody listens on port 0; write the port of the server"
    );
    ensure!(
        !address.names_no_peer(),
        "{text:?} cannot be used: {NO_MACHINE}"
    );
    ensure!(
        plan.servers.len() < MOST_SERVERS,
        "backend {} has {MOST_SERVERS} servers, and no room for more",
        plan.name
    );
    let kind = |address: &ServerAddress| match (address, address.fixed()) {
        (ServerAddress::Datagrams(_), _) => "datagrams",
        (_, Some(address)) if address.keeps_messages() => "sockets with messages",
        (_, Some(Address::Inet { .. })) => "TCP",
        (_, Some(Address::Vsock(_))) => "VSOCK",
        _ => "UNIX sockets",
    };
    let is_alike = |server: &ServerPlan| kind(&server.address) == kind(&planned);
    // Its listeners have been checked for the kinds that it has.
    if !plan.servers.iter().any(is_alike) {
        let kind = kind(&planned);
        bail!(
            "backend {} has no server by {kind}, so that {text} can only be added by its configuration",
            plan.name
        );
    }
    if let Source::Addresses(sources) = &plan.source
        && let Some((ip, family)) = lacks_source(sources, &address)
    {
        bail!(
            "source of backend {} has no {family} address for server {ip}; choose another server",
            plan.name
        );
    }
    Ok((planned, address))
}

fn names_its_servers(plan: &BackendPlan) -> Result<()> {
    let is_srv = |server: &ServerPlan| matches!(server.address, ServerAddress::Srv(_));
    ensure!(
        !plan.servers.iter().any(is_srv),
        "backend {} has the servers that SRV records name; change these records",
        plan.name
    );
    Ok(())
}
