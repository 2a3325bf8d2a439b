"""Do everything that needs TVM: models, tasks, design spaces, kernels and exports. Nothing else imports TVM."""
