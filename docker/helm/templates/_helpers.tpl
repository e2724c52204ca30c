{{/* A name of at most 45 letters: pods of the set have a number behind it, and a label that is longer still. */}}
{{- define "corro.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 45 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 45 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* By which all pods of this release are chosen. */}}
{{- define "corro.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "corro.labels" -}}
{{ include "corro.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "corro.image" -}}
{{ .repository }}{{ if .tag }}:{{ .tag }}{{ end }}
{{- end -}}

{{/* Variables of a pod: env, the job's secret. */}}
{{- define "corro.env" -}}
- name: CORRO_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ default (include "corro.fullname" .root) .root.Values.existingSecret }}
      key: secret
{{- range $name, $value := .env }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{/* What pods of both kinds say of themselves. */}}
{{- define "corro.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
{{- if .root.Values.useHostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- if .root.Values.useHostPID }}
hostPID: true
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .root.Values.runAsUser }}
  runAsGroup: {{ .root.Values.runAsUser }}
  fsGroup: {{ .root.Values.runAsUser }}
  seccompProfile:
    type: RuntimeDefault
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
tolerations:
# A pod of a node that is gone counts as there for half a minute, not for Kubernetes' five.
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
{{- with .root.Values.tolerations }}
{{- toYaml . | nindent 0 }}
{{- end }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "corro.selector" .root | nindent 6 }}
volumes:
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .root.Values.shmSize }}}
- name: tmp
  emptyDir: {}
- name: generated
  configMap:
    name: {{ include "corro.fullname" .root }}
    defaultMode: 0555
{{- with .root.Values.volumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* What containers of both kinds say of themselves. */}}
{{- define "corro.container" -}}
image: {{ include "corro.image" .part.image }}
imagePullPolicy: {{ default "IfNotPresent" .part.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
resources:
  {{- toYaml .root.Values.resources | nindent 2 }}
securityContext:
{{- if .part.privileged }}
  privileged: true
{{- else }}
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
{{- end }}
  readOnlyRootFilesystem: {{ .root.Values.readOnlyRootFilesystem }}
volumeMounts:
- {name: shm, mountPath: /dev/shm}
- {name: tmp, mountPath: /tmp}
- {name: generated, mountPath: /horovod/generated}
{{- with .root.Values.volumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}
