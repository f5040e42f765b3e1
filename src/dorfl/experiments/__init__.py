"""The paper's study, run from the public interface."""
