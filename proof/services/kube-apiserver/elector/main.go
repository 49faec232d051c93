// An elector of client-go, as operators have one: prints when it leads and when it does not, and with a log
// works while it leads: a line each 2 ms.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig")
	namespace := flag.String("namespace", "default", "the namespace of the Lease")
	name := flag.String("name", "", "the name of the Lease")
	id := flag.String("id", "", "the identity")
	lease := flag.Duration("lease", 15*time.Second, "LeaseDuration")
	renew := flag.Duration("renew", 10*time.Second, "RenewDeadline")
	retry := flag.Duration("retry", 2*time.Second, "RetryPeriod")
	release := flag.Bool("release", true, "ReleaseOnCancel")
	log := flag.String("log", "", "a file that gets the identity each 2 ms while it leads")
	flag.Parse()

	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		panic(err)
	}
	// SIGTERM is the end of a pod.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: *name, Namespace: *namespace},
		Client:     kubernetes.NewForConfigOrDie(config).CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: *id},
	}
	fmt.Println("started")
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		ReleaseOnCancel: *release,
		LeaseDuration:   *lease,
		RenewDeadline:   *renew,
		RetryPeriod:     *retry,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				fmt.Println("leads")
				if *log != "" {
					work(ctx, *log, *id)
				}
			},
			OnStoppedLeading: func() { fmt.Println("stopped") },
			OnNewLeader:      func(leader string) { fmt.Printf("leader %s\n", leader) },
		},
	})
}

// Works until the leadership ends.
func work(ctx context.Context, log, id string) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	for ctx.Err() == nil {
		if _, err := file.WriteString(id + "\n"); err != nil {
			panic(err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
