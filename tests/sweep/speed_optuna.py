"""speed_optuna.py [TRIALS [STEPS]]: the sweep of speed.lua with Optuna and PyTorch: two processes, one thread each, one
SQLite file. Prints the seconds from start to end."""
import multiprocessing
import os
import sys
import tempfile
import time

trials = int(sys.argv[1]) if len(sys.argv) > 1 else 100
steps = int(sys.argv[2]) if len(sys.argv) > 2 else 2000


def work(storage, core):
    os.sched_setaffinity(0, {core})
    import optuna
    import torch
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial):
        torch.manual_seed(trial.number)
        width = trial.suggest_int("width", 16, 64)
        x, y = torch.randn(512, 32), torch.randint(0, 10, (512,))
        model = torch.nn.Sequential(torch.nn.Linear(32, width), torch.nn.ReLU(), torch.nn.Linear(width, width),
                                    torch.nn.ReLU(), torch.nn.Linear(width, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True))
        criterion = torch.nn.CrossEntropyLoss()
        for step in range(steps):
            at = step % 16 * 32
            optimizer.zero_grad()
            loss = criterion(model(x[at:at + 32]), y[at:at + 32])
            loss.backward()
            optimizer.step()
        return loss.item()

    study = optuna.load_study(study_name="speed", storage=storage, sampler=optuna.samplers.TPESampler(seed=core))
    study.optimize(objective, callbacks=[optuna.study.MaxTrialsCallback(trials)])


if __name__ == "__main__":
    import optuna
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    begin = time.time()
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{folder}/sweep.db"
        optuna.create_study(study_name="speed", storage=storage)
        context = multiprocessing.get_context("spawn")
        cores = sorted(os.sched_getaffinity(0))
        workers = [context.Process(target=work, args=(storage, core)) for core in cores[:2]]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        done = len(optuna.load_study(study_name="speed", storage=storage).trials)
    print(f"optuna: {done} trials of {steps} steps: {time.time() - begin:.2f} s")
