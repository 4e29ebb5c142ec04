//! When to tell that a table has become full, or no longer is (OpenFlow 1.4 section 6.3.2 and 7.4.5).

use openflow::TableReason;

use super::Table;

impl Table {
    /// Begins to look for the event that can come first, if none is looked for yet.
    pub fn watch_vacancy(&mut self) {
        let free = self.free_percent();
        self.awaited = match self.state.vacancy {
            Some(_) if self.awaited.is_some() => self.awaited,
            Some(vacancy) if free < vacancy.up => Some(TableReason::VacancyUp),
            Some(_) => Some(TableReason::VacancyDown),
            None => None,
        };
    }

    /// The event that is due, after which the other one is looked for: one threshold is told once until the other has been
    /// passed.
    pub fn vacancy_event(&mut self) -> Option<TableReason> {
        let (vacancy, free) = (self.state.vacancy?, self.free_percent());
        let passed = match () {
            () if free < vacancy.down => TableReason::VacancyDown,
            () if free > vacancy.up => TableReason::VacancyUp,
            () => return None,
        };
        if self.awaited != Some(passed) {
            return None;
        }
        self.awaited = Some(match passed {
            TableReason::VacancyDown => TableReason::VacancyUp,
            TableReason::VacancyUp => TableReason::VacancyDown,
        });
        Some(passed)
    }
}
