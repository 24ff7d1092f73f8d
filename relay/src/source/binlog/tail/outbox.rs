//! Which tables are the relay's own, and how the rows of the outbox table are read (pure).

use super::plan::{Plan, Unreadable};
use crate::catalogue::Catalogue;
use crate::config::{Columns, Config};
use crate::event::OutboxEvent;
use crate::source::binlog::decode::{DecodeError, RowsEvent, TableName};

/// The outbox table in the binlog.
pub(super) struct Outbox {
    schema: Vec<u8>,
    table: Vec<u8>,
    checkpoint_table: Vec<u8>,
    columns: Columns,
    folds_names: bool,
    plan: Option<Plan>,
    catalogue: Option<Catalogue>,
}

impl Outbox {
    pub(super) fn new(config: &Config) -> Self {
        Self {
            schema: config.mysql.database().as_bytes().to_vec(),
            table: config.table.as_str().as_bytes().to_vec(),
            checkpoint_table: config.checkpoint_table.as_str().as_bytes().to_vec(),
            columns: config.columns.clone(),
            folds_names: false,
            plan: None,
            catalogue: None,
        }
    }

    /// Its name, without the schema.
    pub(super) fn table(&self) -> &[u8] {
        &self.table
    }

    /// A server that compares names like that.
    pub(super) fn follow(&mut self, folds_names: bool) {
        self.folds_names = folds_names;
    }

    /// Tables may be others from now on, or have other numbers.
    pub(super) fn forget(&mut self) {
        self.plan = None;
        self.catalogue = None;
    }

    /// Table ids are handed out anew after a restart.
    pub(super) fn forget_ids(&mut self) {
        self.plan = None;
    }

    /// A statement may have changed the table.
    pub(super) fn may_be_altered(&mut self) {
        self.catalogue = None;
    }

    /// Whether a TABLE_MAP is about the outbox table, and is new, and the catalogue has not been asked.
    pub(super) fn needs_catalogue(&self, map: &[u8]) -> bool {
        self.catalogue.is_none()
            && TableName::peek(map).is_ok_and(|name| self.is_outbox(&name))
            && self.plan.as_ref().is_none_or(|plan| plan.map != map)
    }

    pub(super) fn set_catalogue(&mut self, catalogue: Catalogue) {
        self.catalogue = Some(catalogue);
    }

    /// Takes a TABLE_MAP in; whether a change of that table is worth a checkpoint: the relay's own bookkeeping is not, and
    /// neither are its marks.
    pub(super) fn map(&mut self, data: &[u8], timestamp: u32) -> Result<bool, DecodeError> {
        let name = TableName::peek(data)?;
        if !self.is_outbox(&name) {
            let own = self.is_named(name.schema, &self.schema)
                && self.is_named(name.table, &self.checkpoint_table);
            self.plan = self.plan.take_if(|plan| plan.table_id != name.table_id);
            return Ok(!own);
        }
        if self.plan.as_ref().is_none_or(|plan| plan.map != data) {
            self.plan = Some(Plan::new(
                data,
                name.table_id,
                timestamp,
                self.catalogue.as_ref(),
                &self.columns,
            ));
        }
        Ok(false)
    }

    /// The events in rows that were inserted; whether they are of the outbox table.
    pub(super) fn events(
        &self,
        kind: u8,
        data: &[u8],
        each: impl FnMut(OutboxEvent),
    ) -> Result<bool, Unreadable> {
        let rows = RowsEvent::parse(kind, data)?;
        let plan = self
            .plan
            .as_ref()
            .filter(|plan| plan.table_id == rows.table_id);
        plan.map_or(Ok(false), |plan| plan.events(&rows, each).map(|()| true))
    }

    fn is_outbox(&self, name: &TableName<'_>) -> bool {
        self.is_named(name.schema, &self.schema) && self.is_named(name.table, &self.table)
    }

    fn is_named(&self, name: &[u8], wanted: &[u8]) -> bool {
        if self.folds_names {
            name.eq_ignore_ascii_case(wanted)
        } else {
            name == wanted
        }
    }
}
