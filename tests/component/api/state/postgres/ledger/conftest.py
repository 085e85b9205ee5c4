from tests.component.api.metering.conftest import ask, database, jobs, store

__all__ = ["ask", "database", "jobs", "store"]
