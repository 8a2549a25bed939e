/* embed.c: tlua inside a game. The C program owns the game and its loop; a policy written in Lua (below) chooses the
 * moves and learns between frames, from tensors that both share without a copy.
 *
 * The game: a ball falls through a grid, a paddle at the bottom moves left, stays or moves right. A caught ball is +1, a
 * missed one -1. The policy is a small network, trained by REINFORCE (Williams 1992).
 *
 * Build it against an installed tlua (examples/CMakeLists.txt, or pkg-config tlua-host):
 *     cmake -S examples -B build-embed && cmake --build build-embed && build-embed/embed [games] [--repl] */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tlua_host.h"

enum { WIDTH = 7, HEIGHT = 8 };

static const char policy[] = "local nn, optim = tl.nn, tl.optim\n"
                             "tl.manual_seed(7)\n"
                             "model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 3))\n"
                             "local opt = optim.Adam(model:parameters(), {lr = 0.01})\n"
                             "local losses, average = {}, 0\n"
                             "function act() -- reads the global `observation`, gives 0, 1 or 2\n"
                             "  local log_p = model(observation):log_softmax(1)\n"
                             "  local draw, move, sum = tl.rand(1):item(), 0, 0\n"
                             "  for i = 1, 3 do\n"
                             "    sum = sum + math.exp(log_p[i]:item())\n"
                             "    move = i\n"
                             "    if draw < sum then break end\n"
                             "  end\n"
                             "  losses[#losses + 1] = -log_p[move]\n"
                             "  return move - 1\n"
                             "end\n"
                             "function learn(reward)\n"
                             "  average = 0.95 * average + 0.05 * reward\n"
                             "  local loss = tl.stack(losses):sum() * (reward - average)\n"
                             "  opt:zero_grad()\n"
                             "  loss:backward()\n"
                             "  opt:step()\n"
                             "  losses = {}\n"
                             "end\n";

typedef struct game {
  int ball, height, paddle;
} game;

static void start(game *g, unsigned *seed) {
  g->ball = (int)(rand_r(seed) % WIDTH);
  g->height = HEIGHT;
  g->paddle = WIDTH / 2;
}

/* One frame. Returns whether the ball still falls. */
static int frame(game *g, int move) {
  g->paddle += move - 1;
  if (g->paddle < 0) g->paddle = 0;
  if (g->paddle >= WIDTH) g->paddle = WIDTH - 1;
  return --g->height > 0;
}

/* Calls the Lua function `name` with one number, or none; its number is the result. */
static int call(tlua_host *host, const char *name, const double *argument, double *result) {
  char code[96];
  if (argument == NULL) snprintf(code, sizeof code, "answer[1] = %s()", name);
  else snprintf(code, sizeof code, "%s(%.17g)", name, *argument);
  if (tlua_host_run_string(host, code, "game") != 0) return 1;
  tl_tensor *answer = tlua_host_get_tensor(host, "answer");
  return answer == NULL || (result != NULL && tl_to_doubles(answer, 1, result) != TL_OK);
}

static int play(tlua_host *host, float *seen, unsigned *seed, double *reward) {
  game g;
  start(&g, seed);
  double move;
  do {
    seen[0] = (float)g.ball / WIDTH;
    seen[1] = (float)g.height / HEIGHT;
    seen[2] = (float)g.paddle / WIDTH;
    if (call(host, "act", NULL, &move) != 0) return 1;
  } while (frame(&g, (int)move));
  *reward = g.paddle == g.ball ? 1 : -1;
  return call(host, "learn", reward, NULL);
}

int main(int argc, char **argv) {
  int games = argc > 1 && argv[1][0] != '-' ? atoi(argv[1]) : 1500;
  int repl = argc > 1 && strcmp(argv[argc - 1], "--repl") == 0;
  unsigned seed = 1;
  tl_tensor *observation = NULL, *answer = NULL;
  const int64_t three = 3, one = 1;
  tlua_host *host = tlua_host_new(NULL);
  int failed = host == NULL || tl_full(1, &three, 0, TL_FLOAT32, TL_CPU, &observation) != TL_OK ||
               tl_full(1, &one, 0, TL_FLOAT32, TL_CPU, &answer) != TL_OK ||
               tlua_host_set_tensor(host, "observation", observation) != 0 ||
               tlua_host_set_tensor(host, "answer", answer) != 0 || tlua_host_run_string(host, policy, "policy") != 0;
  int caught = 0, block = games / 5 > 0 ? games / 5 : 1;
  for (int i = 1; i <= games && !failed; i++) {
    double reward;
    failed = play(host, tl_data(observation), &seed, &reward);
    caught += !failed && reward > 0;
    if (i % block == 0) {
      printf("games %5d to %5d: %3d %% caught\n", i - block + 1, i, caught * 100 / block);
      caught = 0;
    }
  }
  if (failed) fprintf(stderr, "%s\n", tlua_host_error(host));
  if (repl && !failed) tlua_host_repl(host, stdin, stdout); /* look at `model`, call act() */
  tl_tensor_free(observation);
  tl_tensor_free(answer);
  tlua_host_close(host);
  return failed;
}
